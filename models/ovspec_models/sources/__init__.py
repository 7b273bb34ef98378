"""Models that are no folder of OpenVINO IR yet: GGUF files, and names on a hub."""

from ovspec_models.sources.model_folder import model_folder, model_name

__all__ = ["model_folder", "model_name"]
