"""The HTTP server: OpenAI's interface on one engine."""
