"""flashd's tests: one folder a room of the code. `conftest.py` has what all of them share."""
