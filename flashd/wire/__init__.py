"""What is sent and stored, as types: requests, commands, events, artifacts. Parsing never raises; it answers a value."""
