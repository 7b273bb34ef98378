"""`ovspec bench`."""
