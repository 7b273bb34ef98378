"""The engine: one pass after another over the sequences of a call."""
