"""DecoderLayers: see README.md."""
