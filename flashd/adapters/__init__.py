"""One outside system each: maps its errors, decides nothing."""
