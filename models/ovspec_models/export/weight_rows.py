"""8-bit compression of a matrix in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovspec_models.export.mapped_weights import MORE_MEMORY, OPENVINO_BACKEND, release_pages
from ovspec_models.folder.private_names import misfit

_PARAMETERS = "nncf.quantization.algorithms.weight_compression.parameters"
VALUES_AT_ONCE = 1 << 22


@contextmanager
def compressed_by_rows(warn: Callable[[str], None]) -> Iterator[None]:
    """Within this context, NNCF compresses matrices to 8 bits a few rows at a time.

    It holds a matrix as f32 while it compresses it: of a vocabulary of 151,936 tokens that is as much as half
    of a small model. Each row has a scale of its own, so the result is the same, bit for bit. With an NNCF of
    another build, of which `warn` is told, nothing changes.
    """
    # Not public; the same in NNCF 3.0 to 3.4.
    reason = misfit(OPENVINO_BACKEND, ["compress_weight"])
    reason = reason or misfit(_PARAMETERS, ["CompressedWeight"])
    reason = reason or misfit("nncf.tensor", ["Tensor", "TensorBackend.ov"])
    if reason:
        warn(f"{reason}: {MORE_MEMORY}")
        yield
        return
    from nncf.quantization.algorithms.weight_compression import openvino_backend
    from nncf.tensor import TensorBackend

    original = openvino_backend.compress_weight

    def compress_weight(weight: Any, axes: Any, config: Any, precomputed: Any = None) -> Any:
        whole = (
            precomputed is not None
            or weight.backend != TensorBackend.ov
            or len(weight.shape) != 2
            or axes not in (1, (1,))
            or not (config.is_integer and config.num_bits == 8)
        )
        return original(weight, axes, config, precomputed) if whole else _by_rows(weight, axes, config)

    def _by_rows(weight: Any, axes: Any, config: Any) -> Any:
        from nncf.quantization.algorithms.weight_compression.parameters import CompressedWeight
        from nncf.tensor import Tensor

        rows, columns = weight.shape
        step = max(1, VALUES_AT_ONCE // columns)
        joined: dict[str, NDArray[Any]] = {}
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            part = ov.Tensor(weight.data, ov.Coordinate([start, 0]), ov.Coordinate([stop, columns]))
            compressed = original(Tensor(part), axes, config)
            release_pages(part.data)
            for name in ("tensor", "scale", "zero_point"):
                value = getattr(compressed, name)
                if value is not None:
                    shape = (rows, *value.shape[1:])
                    joined.setdefault(name, np.empty(shape, value.data.dtype))[start:stop] = value.data
        return CompressedWeight(**{name: Tensor(values) for name, values in joined.items()})

    with patch.multiple(openvino_backend, compress_weight=compress_weight):
        yield
