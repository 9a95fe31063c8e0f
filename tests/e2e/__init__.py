"""The whole product against the simulated world: a real redis-server, the daemon as a process, HTTP in between."""
