"""The command line, from outside: the real program as a process, data put into a real Redis by the real store."""
