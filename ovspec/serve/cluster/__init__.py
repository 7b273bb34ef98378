"""Many engines: replicas on the machines of a Ray cluster."""
