"""What a call asks for and what it returns."""
