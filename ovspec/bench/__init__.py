"""Measurements behind `ovspec bench`: a pass for several backends, and a step outside the models."""

from ovspec.bench.acceptance_trace import AcceptanceTrace
from ovspec.bench.backends import BACKENDS, DEFAULT_BACKENDS, SPARSE
from ovspec.bench.decode import MODES, DecodeBench
from ovspec.bench.host import HostBench
from ovspec.bench.kernel import KernelBench
from ovspec.bench.plot import check_plot, plot_report
from ovspec.bench.record import record_trace
from ovspec.bench.report import Report
from ovspec.bench.schedule import WORKLOADS, ScheduleBench
from ovspec.bench.source import ModelSource
from ovspec.bench.verify import VerifyBench

__all__ = [
    "BACKENDS",
    "DEFAULT_BACKENDS",
    "MODES",
    "SPARSE",
    "WORKLOADS",
    "AcceptanceTrace",
    "DecodeBench",
    "HostBench",
    "KernelBench",
    "ModelSource",
    "Report",
    "ScheduleBench",
    "VerifyBench",
    "check_plot",
    "plot_report",
    "record_trace",
]
