"""Which operations compute a model: resolved once, for the memory plan, the cache key and the runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import openvino as ov

from ovspec.devices.devices import is_cpu, openvino_core, resolve_device
from ovspec.devices.properties import check_properties, with_defaults, written_type
from ovspec.operations.attention_config import AttentionConfig
from ovspec.operations.expert_budgets import ExpertConfig
from ovspec.operations.ffn_budgets import FfnConfig
from ovspec.operations.linear_backend import LinearBackend, linear_backend
from ovspec.operations.native_attention import attention_on, why_not_native
from ovspec.operations.row_rounding import arithmetic, rounding_settings, rounds_rows, row_bits
from ovspec_transforms import Arithmetic, RowBits, RowSight


@dataclass(frozen=True, slots=True)
class Backends:
    """The operations that compute one model on one device, with what decides them.

    Attributes:
        device: OpenVINO device, e.g. "CPU".
        properties: OpenVINO properties in force, our defaults included.
        attention: which attention verification rows take.
        experts: how the experts of a mixture are computed; `None` leaves them as they are.
        ffn: how the gated MLPs of dense layers are computed; `None` leaves them as they are.
        linear: what computes linear layers.
        linear_required: whether the user asked for "native" linear layers: a model without any is refused.
        row_bits: of the integers that rows become in `Linear` and `GatedMLP`; `None` where neither is there.
        arithmetic: of products with floating-point weights; "f32" on other devices than a CPU.
        boundaries: whose hidden states a pass returns, as `ovspec_transforms.hidden_states`.
        skips_layers: whether a pass can leave layers out, as `ovspec_transforms.skip_layers`; it returns the
            states behind the last one then.
        drafts: whether a pass can draft several tokens, as `ovspec_transforms.join_layers`, where its layers
            are of a known kind.
        sights: what rows see in each layer, as `ovspec_transforms.route_rows`.
        adapts: whether LoRA adapters can add to linear layers.
        why_stock_attention: why our attention can't be had for the model; empty where it can.
    """

    device: str = "CPU"
    properties: Mapping[str, object] = field(default_factory=dict)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    experts: ExpertConfig | None = None
    ffn: FfnConfig | None = None
    linear: LinearBackend = "stock"
    linear_required: bool = False
    row_bits: RowBits | None = None
    arithmetic: Arithmetic = "f32"
    boundaries: tuple[int, ...] = ()
    skips_layers: bool = False
    drafts: bool = False
    sights: tuple[RowSight, ...] = ()
    adapts: bool = False
    why_stock_attention: str = ""

    @classmethod
    def resolve(
        cls,
        model: str | Path | ov.Model,
        device: str = "CPU",
        properties: Mapping[str, object] | None = None,
        attention: AttentionConfig | None = None,
        experts: ExpertConfig | None = None,
        ffn: FfnConfig | None = None,
        linear: LinearBackend | None = None,
        plugin_defaults: bool = False,
        boundaries: tuple[int, ...] = (),
        skips_layers: bool = False,
        adapts: bool = False,
    ) -> Backends:
        """Decide what the user leaves open, and check that the device has all of it.

        Args:
            model: folder with `openvino_model.xml`, or the model itself.
            attention, experts, ffn: as the attributes; `None` for attention is what `attention_on` chooses,
                dense.
            linear: "native", "stock", or `None` for `linear_backend`.
            plugin_defaults: leave to the plugin what `properties` does not say.

        Raises:
            ValueError: a native operation on another device than a CPU or for a shape that it does not take,
                a device or property that is not known, or settings that contradict each other.
        """
        device = resolve_device(device)
        attention = attention or AttentionConfig(attention_on(device, None, model))
        asked = {
            "attention": attention.backend,
            "experts": experts and experts.backend,
            "ffn": ffn and ffn.backend,
            "linear": linear,
        }
        if ffn and ffn.limits and not is_cpu(device):
            raise ValueError(
                f"device={device!r}: ffn density {ffn.density}: only our operation limits channels, and it "
                "runs on CPU only; leave the density out"
            )
        for name, backend in asked.items():
            if backend == "native" and not is_cpu(device):
                verb = "runs" if name == "attention" else "run"
                raise ValueError(f"device={device!r}: native {name} {verb} on CPU only; pass {name}='stock'")
        attention_on(device, attention.backend, model)  # refuses heads that it does not take
        given = dict(properties or {})
        settings = given if plugin_defaults else with_defaults(given, device)
        core = openvino_core()
        check_properties(core, device, settings)
        rounding = rounding_settings(model, given)
        resolved = linear_backend(linear, attention.backend, device, plugin_defaults)
        if adapts:
            _check_adapters(resolved, attention.backend)
        return cls(
            device=device,
            properties=settings,
            attention=attention,
            experts=experts,
            ffn=ffn,
            linear=resolved,
            linear_required=linear == "native",
            row_bits=row_bits(device, rounding) if rounds_rows(model, ffn, resolved) else None,
            arithmetic=arithmetic(settings) if is_cpu(device) else "f32",
            boundaries=boundaries,
            skips_layers=skips_layers,
            adapts=adapts,
            why_stock_attention=why_not_native(model) if is_cpu(device) else "",
        )

    @property
    def on_cpu(self) -> bool:
        """Whether the device is a CPU, where our operations run."""
        return is_cpu(self.device)

    @property
    def limits_weights(self) -> bool:
        """Whether rows of a pass share a budget of experts or channels."""
        return any(part and part.limits for part in (self.experts, self.ffn))

    @property
    def native(self) -> bool:
        """Whether any of our operations is asked for, so that the native library must be loaded."""
        parts = (self.attention, self.experts, self.ffn)
        return self.linear == "native" or any(part is not None and part.backend == "native" for part in parts)

    @property
    def written_type(self) -> ov.Type | None:
        """Type of keys and values that an operation of ours writes; `None` where the stock node does."""
        return written_type(self.properties) if self.attention.backend == "native" else None

    @property
    def joins_layers(self) -> bool:
        """Whether stretches of decoder layers become one operation each: what they compute is all ours."""
        return self.linear == "native" and self.attention.backend == "native"

    @property
    def uses_cache_dir(self) -> bool:
        """Whether the user wants the compiled model kept in CACHE_DIR."""
        return self.on_cpu and "CACHE_DIR" in self.properties

    @property
    def plugin_properties(self) -> dict[str, object]:
        """What the plugin gets: it keeps compiled models in CACHE_DIR by itself on a GPU, ovspec on a CPU."""
        kept = {"CACHE_DIR"} if self.on_cpu else set()
        return {name: value for name, value in self.properties.items() if name not in kept}

    @property
    def graph(self) -> dict[str, object]:
        """What decides the transforms, as JSON values; a part of the cache key."""
        parts = {"attention": self.attention, "experts": self.experts, "ffn": self.ffn}
        return {
            **{name: part.graph if part else None for name, part in parts.items()},
            "linear": self.linear,
            "row_bits": self.row_bits,
            "arithmetic": self.arithmetic,
            "boundaries": self.boundaries,
            "skips_layers": self.skips_layers,
            "drafts": self.drafts,
            "sights": [asdict(sight) for sight in self.sights],
            "adapts": self.adapts,
        }


def _check_adapters(linear: LinearBackend, attention: str) -> None:
    """Refuse operations that adapters can't add to."""
    if linear != "native":
        because = ", as attention='stock' has it" if attention == "stock" else ""
        raise ValueError(
            f"adapters: linear='stock'{because}: only our linear layers, which run on CPUs, take adapters; "
            "use linear='native'"
        )
