"""GPU clouds behind one Protocol; no provider's word leaves its own module."""
