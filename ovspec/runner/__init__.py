"""One model that runs passes."""
