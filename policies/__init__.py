"""Pure decisions: no Ray, no I/O, no clock, no randomness, no logging."""
