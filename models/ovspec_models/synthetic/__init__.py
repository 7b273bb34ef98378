"""OpenVINO IR of real model shapes with random weights, for benchmarks: no checkpoint, no torch."""

from ovspec_models.synthetic.decoder import build_model
from ovspec_models.synthetic.weights import WEIGHT_FORMATS, weight_bytes

__all__ = ["WEIGHT_FORMATS", "build_model", "weight_bytes"]
