"""Native OpenVINO operations of ovspec, their NumPy references and the loader."""

from ovspec_ops.loader import active_isa, available_isas, create, extension_path, load

__all__ = ["active_isa", "available_isas", "create", "extension_path", "load"]
