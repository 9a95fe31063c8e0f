"""The command line: one module a verb group, imported lazily."""
