"""What an operator sees: alarms, health, reload, alert rules, and pages that say what is true."""
