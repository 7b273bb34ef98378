"""What clients get: pieces of an answer, and the objects that carry them."""
