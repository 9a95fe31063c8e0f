"""What the demo's worker learns from: short support tickets; 1 = about money, 0 = about machines."""

from __future__ import annotations

TICKETS: tuple[tuple[str, int], ...] = (
    ("my invoice shows the wrong amount", 1),
    ("please refund the last payment", 1),
    ("the card was charged twice", 1),
    ("when will my credit be booked", 1),
    ("the price differs from the invoice", 1),
    ("how do I pay by bank transfer", 1),
    ("our tax number is missing on the bill", 1),
    ("cancel my subscription and refund me", 1),
    ("the discount was not applied to my bill", 1),
    ("why was I charged for last month", 1),
    ("send the receipt of the payment again", 1),
    ("the balance of my account is negative", 1),
    ("the machine does not start any more", 0),
    ("the driver fails after the reboot", 0),
    ("I cannot log in to my server", 0),
    ("the disk of the machine is full", 0),
    ("the training process hangs at start", 0),
    ("the network of my server is slow", 0),
    ("the container cannot find the driver", 0),
    ("my machine reboots every hour", 0),
    ("the upload stops with an error", 0),
    ("how do I attach a disk to the server", 0),
    ("the process was killed without an error", 0),
    ("the console of the machine stays black", 0),
)
HELD_OUT: tuple[tuple[str, int], ...] = (
    ("the refund of my payment is missing", 1),
    ("my card was charged the wrong price", 1),
    ("the bill shows a negative balance", 1),
    ("the server hangs after a reboot", 0),
    ("the driver of the machine fails", 0),
    ("the disk cannot be found by the container", 0),
)
