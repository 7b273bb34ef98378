"""Measurements behind `ovspec bench`: one pass, timed for several backends on one machine."""

from ovspec.bench.backends import BACKENDS
from ovspec.bench.report import Report
from ovspec.bench.source import ModelSource
from ovspec.bench.verify import VerifyBench

__all__ = ["BACKENDS", "ModelSource", "Report", "VerifyBench"]
