"""The models of a pipeline: target, draft model, head."""
