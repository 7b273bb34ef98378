"""How many tokens are drafted."""
