"""What a failed export says: the innermost reason, and the packages to install."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from commands import command, ovspec
from tiny_checkpoints import save_checkpoint

from ovspec_models.export.reasons import packages_to_install, reason

pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")


def raised(*errors: Exception) -> Exception:
    """The last error, each raised from the one before."""
    try:
        try:
            if len(errors) > 1:
                raise raised(*errors[:-1])
        except Exception as inner:
            raise errors[-1] from inner
        raise errors[-1]
    except Exception as error:
        return error


def test_the_innermost_reason_is_said_once() -> None:
    first, second = RuntimeError("operator x does not exist"), ImportError("Could not import module 'Y'.")
    third = ModuleNotFoundError("Could not import module 'Z'. Are the requirements defined?")
    assert reason(raised(first)) == "operator x does not exist"
    said = "Could not import module 'Z'. Are the requirements defined?; cause: operator x does not exist"
    assert reason(raised(first, second, third)) == said
    told = raised(first, RuntimeError("failed: operator x does not exist"))
    assert reason(told) == "failed: operator x does not exist"


def test_a_lookup_that_was_tried_is_no_reason() -> None:
    error = ValueError("no such model")
    error.__context__ = KeyError("model")
    assert reason(error) == "no such model" and packages_to_install(error) is None


def test_a_circle_of_errors_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert reason(first)


@pytest.mark.slow
def test_torchvision_that_does_not_fit_torch(tmp_path: Path, demo_draft: Path) -> None:
    """A module that fails as torchvision does beside another torch; transformers imports it by itself."""
    (tmp_path / "torchvision").mkdir()
    code = 'raise RuntimeError("operator torchvision::nms does not exist")'
    (tmp_path / "torchvision" / "__init__.py").write_text(code)
    about = tmp_path / "torchvision-0.20.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.20.0\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = ("-m", "ovspec", "export", "-m", str(demo_draft), str(tmp_path / "ir"))
    done = command(sys.executable, *words, env=environment)
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and "cause: operator torchvision::nms does not exist" in line
    assert "torchvision does not fit torch" in line and "pip uninstall torchvision" in line


def test_transformers_that_is_too_new(tmp_path: Path, demo_draft: Path) -> None:
    """optimum-intel 2.1 takes this family up to a version; the message names how to get it."""
    transformers = pytest.importorskip("transformers", "5.0")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.Exaone4Config(**sizes, num_key_value_heads=2, vocab_size=4096, eos_token_id=0)
    folder = save_checkpoint(transformers.Exaone4ForCausalLM(config), tmp_path / "model")
    done = ovspec("export", "-m", folder, tmp_path / "ir", "--weight-format", "fp16")
    assert done.returncode == 2
    assert 'pip install "transformers<=4.57.6"' in done.stderr.splitlines()[-1]
