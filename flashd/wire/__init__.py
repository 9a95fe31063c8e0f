"""What is sent and stored, as types: requests, commands, events, artifacts. Parsing answers a value, never raises."""
