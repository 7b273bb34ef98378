"""A folder that runs a model on a machine without compiler, network or torch."""

from ovspec.bundle.bundle import BundleReport, write_bundle

__all__ = ["BundleReport", "write_bundle"]
