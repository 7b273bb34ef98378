"""Dense, sparse and committed verification as settings."""
