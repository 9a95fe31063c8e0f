"""The code that the demo's runs execute in their boxes. Committed to the simulated Hub, never imported by flashd."""
