"""Which cache blocks each KV head reads: the reference of the native operation (see README.md)."""
