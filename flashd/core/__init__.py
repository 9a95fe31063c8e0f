"""Pure decisions: values in, values out. No await, clock, environment, log or chance."""
