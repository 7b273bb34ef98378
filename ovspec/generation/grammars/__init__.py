"""What structured output allows: JSON schemas, EBNF, tags, as grammars."""
