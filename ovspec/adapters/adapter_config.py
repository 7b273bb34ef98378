"""Which adapters a pipeline or a call uses, as `openvino_genai.AdapterConfig`."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import openvino_genai

from ovspec.adapters.adapter import Adapter
from ovspec.adapters.adapter_file import finite
from ovspec.errors import InvalidTypeError, InvalidValueError
from ovspec_models.folder.shown import shown

AdapterMode: TypeAlias = openvino_genai.AdapterConfig.Mode
_MODE: type = openvino_genai.AdapterConfig.Mode
_AUTO, _FUSE = AdapterMode.MODE_AUTO, AdapterMode.MODE_FUSE


class AdapterConfig:
    """LoRA adapters with a factor each, alpha; 1.0 where none is given.

    Args:
        adapters: an adapter, several, or pairs of an adapter and its alpha; nothing: none.
        alpha: of one adapter, or one for each of several.
        mode: MODE_AUTO and MODE_DYNAMIC: a call may use any adapters. MODE_STATIC_RANK: those of the pipeline
            with any alphas, or none. MODE_STATIC: those of the pipeline with its alphas. MODE_FUSE is
            refused: weights stay as they are.

    Raises:
        InvalidValueError: an adapter that is none or given twice, an alpha that is no finite number, or
            MODE_FUSE.
    """

    Mode = openvino_genai.AdapterConfig.Mode

    def __init__(
        self,
        adapters: Adapter | Sequence[Adapter | tuple[Adapter, float]] | AdapterMode = (),
        alpha: float | Sequence[float] | AdapterMode | None = None,
        mode: AdapterMode = _AUTO,
        *,
        adapter: Adapter | None = None,
    ) -> None:
        # openvino_genai's constructors are (mode), (adapter, mode), (adapter, alpha, mode), (adapters, mode).
        if isinstance(adapters, _MODE) + isinstance(alpha, _MODE) + (mode != _AUTO) > 1:
            raise InvalidTypeError("AdapterConfig: mode is given twice: leave one out")
        if isinstance(adapters, _MODE):
            adapters, mode = (), adapters
        if isinstance(alpha, _MODE):
            alpha, mode = None, alpha
        if not isinstance(mode, _MODE):
            raise InvalidTypeError(f"mode={mode!r}: expected an AdapterConfig.Mode")
        if mode == _FUSE:
            raise InvalidValueError(
                "MODE_FUSE: adapters are computed beside the weights, which stay as they are: use MODE_STATIC"
            )
        if adapter is not None and adapters != ():
            raise InvalidTypeError("AdapterConfig: adapter and adapters are both given: leave one out")
        given = adapter if adapter is not None else adapters
        self._mode: AdapterMode = mode
        self._parts: list[tuple[Adapter, float]] = []
        self.set_adapters_and_alphas(_pairs(given, alpha))

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __repr__(self) -> str:
        return f"AdapterConfig({self._parts!r}, mode={self._mode.name})"

    @property
    def mode(self) -> AdapterMode:
        """What a call may change."""
        return self._mode

    def add(self, adapter: Adapter, alpha: float = 1.0) -> AdapterConfig:
        """Add an adapter; the configuration itself."""
        if any(adapter is known for known, _ in self._parts):
            raise InvalidValueError(f"{adapter!r} is in this AdapterConfig already; use set_alpha")
        self._parts.append(_part(adapter, alpha))
        return self

    def remove(self, adapter: Adapter) -> AdapterConfig:
        """Remove an adapter; the configuration itself."""
        del self._parts[self._index(adapter)]
        return self

    def get_adapters(self) -> list[Adapter]:
        """Its adapters."""
        return [adapter for adapter, _ in self._parts]

    def get_adapters_and_alphas(self) -> list[tuple[Adapter, float]]:
        """Its adapters, each with its alpha."""
        return list(self._parts)

    def set_adapters_and_alphas(self, adapters: Sequence[tuple[Adapter, float]]) -> None:
        """Replace all of them; nothing changes where one is refused."""
        before, self._parts = self._parts, []
        try:
            for adapter, alpha in adapters:
                self.add(adapter, alpha)
        except Exception:
            self._parts = before
            raise

    def get_alpha(self, adapter: Adapter) -> float:
        """The alpha of one of its adapters."""
        return self._parts[self._index(adapter)][1]

    def set_alpha(self, adapter: Adapter, alpha: float) -> AdapterConfig:
        """Set the alpha of one of its adapters; the configuration itself."""
        self._parts[self._index(adapter)] = _part(adapter, alpha)
        return self

    def _index(self, adapter: Adapter) -> int:
        for index, (known, _) in enumerate(self._parts):
            if known is adapter:
                return index
        raise InvalidValueError(f"{adapter!r} is not in this AdapterConfig; add it first")


@dataclass(frozen=True, slots=True)
class AdapterBlend:
    """Adapters with their alphas, as a request uses them.

    Attributes:
        parts: none with an alpha of 0.
    """

    parts: tuple[tuple[Adapter, float], ...]

    @classmethod
    def of(cls, config: AdapterConfig) -> AdapterBlend | None:
        """What a configuration says now; `None` where it adds nothing."""
        parts = tuple(part for part in config.get_adapters_and_alphas() if part[1] != 0.0)
        return cls(parts) if parts else None

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Its adapters."""
        return tuple(adapter for adapter, _ in self.parts)

    @property
    def identity(self) -> bytes:
        """What keys and values depend on, beside the model and the tokens."""
        digest = hashlib.blake2b(digest_size=32)
        for adapter, alpha in self.parts:
            digest.update(adapter.digest + struct.pack("<d", alpha))
        return digest.digest()


@dataclass(frozen=True, slots=True)
class PipelineAdapters:
    """What a pipeline was made with, as far as calls depend on it.

    Attributes:
        mode: what a call may change.
        adapters: those that it was given.
        blend: what calls use that do not say.
    """

    mode: AdapterMode
    adapters: tuple[Adapter, ...]
    blend: AdapterBlend | None

    @classmethod
    def of(cls, config: object) -> PipelineAdapters | None:
        """Of the pipeline's argument `adapters`; `None`: its graph has no place for any.

        Raises:
            InvalidValueError: another object.
        """
        if config is None:
            return None
        config = _checked(config)
        return cls(config.mode, tuple(config.get_adapters()), AdapterBlend.of(config))


def requested(pipeline: PipelineAdapters | None, asked: object) -> AdapterBlend | None:
    """The adapters of a call; `None`: it uses none.

    Args:
        pipeline: that is called.
        asked: of its configuration; `None`: as the pipeline.

    Raises:
        InvalidValueError: adapters that the pipeline has no place for, or may not change.
    """
    if asked is None:
        return pipeline.blend if pipeline else None
    config = _checked(asked)
    if pipeline is None:
        if not config:
            return None
        raise InvalidValueError(
            "adapters: this pipeline was made without; pass adapters=AdapterConfig() to LLMPipeline, so that "
            "calls can use some"
        )
    if config.mode not in (_AUTO, pipeline.mode):
        raise InvalidValueError(
            f"adapters: {config.mode.name} differs from the pipeline's {pipeline.mode.name}, which no call "
            "changes; leave the mode out"
        )
    blend = AdapterBlend.of(config)
    if pipeline.mode == AdapterMode.MODE_STATIC and blend != pipeline.blend:
        raise InvalidValueError(
            "adapters: the pipeline's MODE_STATIC fixes adapters and alphas; leave them out, or make the "
            "pipeline with MODE_DYNAMIC"
        )
    if pipeline.mode == AdapterMode.MODE_STATIC_RANK:
        for adapter, _ in blend.parts if blend else ():
            if not any(adapter is known for known in pipeline.adapters):
                raise InvalidValueError(
                    f"adapters: the pipeline's MODE_STATIC_RANK has no {adapter!r}; give it to LLMPipeline, "
                    "or make the pipeline with MODE_DYNAMIC"
                )
    return blend


def _checked(config: object) -> AdapterConfig:
    """A configuration of ours.

    Raises:
        InvalidTypeError: another object, such as openvino_genai's, which does not give its matrices away.
    """
    if isinstance(config, AdapterConfig):
        return config
    kind = f"{type(config).__module__.partition('.')[0]}.{type(config).__name__}"
    raise InvalidTypeError(f"adapters: expected an ovspec.AdapterConfig, got {kind}")


def _pairs(
    adapters: Adapter | Sequence[Adapter | tuple[Adapter, float]], alpha: float | Sequence[float] | None
) -> list[tuple[Adapter, float]]:
    found = list(adapters) if isinstance(adapters, Sequence) else [adapters]
    if alpha is None:
        return [part if isinstance(part, tuple) else (part, 1.0) for part in found]
    alphas = list(alpha) if isinstance(alpha, Sequence) and not isinstance(alpha, str) else [alpha]
    if len(alphas) != len(found) or any(isinstance(part, tuple) for part in found):
        raise InvalidValueError(
            f"alpha={alpha!r}: expected {len(found)}, one for each adapter, and no pairs beside it"
        )
    return [(part, one) for part, one in zip(found, alphas, strict=True) if not isinstance(part, tuple)]


def _part(adapter: object, alpha: object) -> tuple[Adapter, float]:
    if not isinstance(adapter, Adapter):
        raise InvalidTypeError(f"adapters: expected an ovspec.Adapter, got {type(adapter).__name__}")
    if not adapter:
        raise InvalidValueError("adapters: Adapter() holds nothing; give it a file")
    number = finite(alpha)
    if number is None:
        raise InvalidValueError(f"alpha={shown(alpha)} of {adapter!r}: expected a finite number")
    return adapter, number
