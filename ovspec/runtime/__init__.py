"""One compiled paged model: graph, caches, input tables, the pass itself."""
