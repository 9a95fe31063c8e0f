"""flashd runs GPU fine-tuning jobs on rented machines and never leaks one."""

__version__ = "0.1.0"
