"""Check of an untested family: its paged graph against the stateful one that was exported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec.cache.cache import CachedSequence
from ovspec.devices.devices import openvino_core
from ovspec.errors import raised_by_us
from ovspec.graphs.compile import read_model
from ovspec.graphs.model_identity import identity
from ovspec.passes.tables import Rows
from ovspec.runner.model_runner import ModelRunner
from ovspec_models import ModelInfo
from ovspec_models.families import family_of
from ovspec_models.folder.files import replace_file
from ovspec_transforms import last_line

# Both graphs in f32, so that nothing but the order of f32 sums tells them apart. In the families that are
# tested that is 3e-6 to 4e-5 of the logits' spread, and a lost window, bias or rotation more than 1e-2.
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
TOLERANCE = 2e-3
_CHUNK, _VERIFIED, _LEAST, _MOST = 64, 4, 256, 16_384
_WITH_AXES = 3  # dimensions of positions with axes

MakeRunner = Callable[[dict[str, Any]], ModelRunner]


def check_reference(
    info: ModelInfo, make: MakeRunner, operations: Mapping[str, object], cache_dir: object
) -> None:
    """Compare what a model computes here with what its exported graph computes; tested families are trusted.

    Takes two more compilations and a prompt that is longer than any window or chunk that config.json names,
    once per model where there is a CACHE_DIR, which keeps the verdict.

    Args:
        make: the model with the operations that serve it, but for linear layers and limits, by properties.
        operations: what chooses the operations of that model; a verdict holds for one choice.
        cache_dir: the user's CACHE_DIR, or `None`.

    Raises:
        ValueError: the logits differ by more than f32 rounding explains, or one of the graphs can't be run.
    """
    if family_of(info.model_type) is not None:
        return
    record = _record(info.folder, operations, Path(str(cache_dir))) if cache_dir else None
    difference = _known(record)
    if difference is None:
        difference = _difference(info, make)
        if record is not None:
            record.parent.mkdir(parents=True, exist_ok=True)
            replace_file(record, json.dumps({"difference": difference}).encode())
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{info.folder}: models of type {info.model_type!r} are not tested, and this one computes other "
            f"logits here than in the exported graph: by {difference:.1e} of their spread, {TOLERANCE:.0e} "
            "is allowed; transformers computes it as it was published"
        )


def _record(folder: Path, operations: Mapping[str, object], cache_dir: Path) -> Path:
    """Where the verdict on a model is kept."""
    checked = json.dumps([identity(folder), operations], sort_keys=True, default=str)
    return cache_dir / f"ovspec-checked-{hashlib.sha256(checked.encode()).hexdigest()[:32]}.json"


def _difference(info: ModelInfo, make: MakeRunner) -> float:
    """How far the two graphs are apart.

    Raises:
        ValueError: one of them can't be run on the probe.
    """
    try:
        tokens = probe(info)
        # First what is served: why a graph can't be paged says more than that no other was run.
        served = paged_logits(make(dict(EXACT)), tokens)
        return apart(stateful_logits(info.folder, tokens), served)
    except Exception as error:
        if raised_by_us(error):
            raise
        # Any fault in a graph that nobody has tried is a reason not to serve it, wherever it shows.
        raise ValueError(
            f"{info.folder}: models of type {info.model_type!r} are not tested, and this one can't be "
            f"compared with the exported graph ({type(error).__name__}: {last_line(error)}); transformers "
            "computes it as it was published"
        ) from error


def probe(info: ModelInfo) -> NDArray[np.int64]:
    """Tokens i64 `[length]` that go past every window and chunk in config.json, as far as positions reach."""
    config = json.loads((info.folder / "config.json").read_text(encoding="utf-8"))
    nested = config.get("text_config")
    text = {**config, **nested} if isinstance(nested, dict) else config
    spans = [
        value
        for name, value in text.items()
        if ("window" in name or "chunk" in name) and isinstance(value, int) and 0 < value <= _MOST
    ]
    length = max([_LEAST, *(span + 2 * _CHUNK for span in spans)])
    length = max(1, min(length, (info.max_position_embeddings or length) - 1))
    return np.random.default_rng(0).integers(0, info.vocab_size, length)


def _parts(length: int) -> list[tuple[int, int]]:
    """Begin and end of the passes: chunks of a prompt, then rows as drafts are verified."""
    prompt = max(1, length - _VERIFIED)
    ends = [*range(_CHUNK, prompt, _CHUNK), prompt, length]
    return list(zip([0, *ends], ends, strict=False))


def stateful_logits(folder: Path, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits f32 `[passes, vocab]` of the exported graph, of every pass's last token."""
    core = openvino_core()
    request = core.compile_model(read_model(core, folder), "CPU", dict(EXACT)).create_infer_request()
    names = {name for port in request.model_inputs for name in port.get_names()}
    axes, rows = _axes(request), []
    for begin, end in _parts(len(tokens)):
        positions = np.arange(begin, end)[None]
        inputs = {
            "input_ids": tokens[None, begin:end],
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.tile(positions, (axes, 1, 1)) if axes else positions,
            "beam_idx": np.zeros(1, np.int32),
        }
        request.infer({name: value for name, value in inputs.items() if name in names})
        rows.append(np.array(request.get_tensor("logits").data[0, -1], np.float32))
    return np.stack(rows)


def _axes(request: ov.InferRequest) -> int:
    """Axes of positions, of models that read pictures; 0 for others."""
    shapes = [port.get_partial_shape() for port in request.model_inputs if "position_ids" in port.get_names()]
    return shapes[0][0].get_length() if shapes and len(shapes[0]) == _WITH_AXES else 0


def paged_logits(runner: ModelRunner, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """The same of the graph that is served."""
    sequence, rows = CachedSequence(), []
    parts = _parts(len(tokens))
    for begin, end in parts:
        sampled = end - begin if end == len(tokens) else 1
        batch = [Rows(sequence, tokens[begin:end], sampled=sampled, text_length=len(tokens))]
        logits = runner.forward(batch).logits
        # A graph that confuses rows and batch returns another number of logits: infinitely wrong.
        rows.append(np.array(logits[-1] if len(logits) == sampled else np.inf * logits[-1], np.float32))
    runner.release(sequence)
    return np.stack(rows)


def apart(reference: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """The largest difference of two arrays of logits, of the first one's standard deviation."""
    return float(np.abs(reference - other).max() / reference.std())


def _known(record: Path | None) -> float | None:
    """The verdict that CACHE_DIR keeps, if it can be read."""
    try:
        return float(json.loads(record.read_text(encoding="utf-8"))["difference"]) if record else None
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
