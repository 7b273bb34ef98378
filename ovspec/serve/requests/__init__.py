"""What clients send: bodies, their fields, refusals."""
