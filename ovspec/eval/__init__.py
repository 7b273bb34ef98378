"""Evaluation: verification settings compared with dense decoding."""

from ovspec.eval.fidelity import FidelityEval
from ovspec.eval.plot import plot_fidelity
from ovspec.eval.prompts import Prompt, read_prompts
from ovspec.eval.report import Report
from ovspec.eval.setting import Setting, sweep

__all__ = ["FidelityEval", "Prompt", "Report", "Setting", "plot_fidelity", "read_prompts", "sweep"]
