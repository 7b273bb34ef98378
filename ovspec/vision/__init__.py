"""Pictures: from files and arrays to the rows that a language model reads in their place."""
