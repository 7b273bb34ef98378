"""Calibration: which anchors, channels and experts a model needs, measured on texts."""
