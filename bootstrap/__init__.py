"""What runs on a rented machine: `host` beside docker, `box` in the worker's container. Imports nothing of flashd."""
