"""One request of the engine: what it asks for, and its state."""
