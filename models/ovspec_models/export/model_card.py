"""The ``README.md`` of an exported folder: a model card in the Hugging Face format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ovspec_models.folder.config import OvspecConfig

_CARD = """\
---
{front_matter}
---

# {name}: OpenVINO IR for ovspec

`{source}` ({model_type}), exported to OpenVINO with {weights} weights{draft}.

ovspec runs speculative decoding on OpenVINO with *sparse verification*: a draft proposes several tokens, and
the target checks them in one pass that reads only the cache blocks that matter. `verify=SparseVerify()` is
lossy: it approximates the target's output; `verify="dense"`, the default, is lossless. {elsewhere}

## Run it

```sh
pip install ./ovspec-*.whl   # ovspec's wheel; or `pip install .` in a checkout of it
ovspec generate -m . -p "Once upon a time"
```

```python
import ovspec

{python}
print(pipe.generate("Once upon a time", max_new_tokens=64))
```

## What is in it

| | |
|---|---|
| source | `{source}` |
| draft | {draft_row} |
| weights | {weights} |
| layers, heads, KV heads, head size | {layers}, {heads}, {kv_heads}, {head_dim} |
| vocabulary, longest context | {vocab}, {context} |
| made with | {versions} |

The licence is that of the source model: this export changes the format of the weights, not their terms.
"""
_PLAIN_IR = """\
The same folder also
runs in OpenVINO GenAI and optimum-intel: it holds plain OpenVINO IR."""
_BAKED_IR = """\
Its IR holds
operations of ovspec ({operations}), for CPU. In OpenVINO GenAI it runs with them loaded:
`openvino_genai.LLMPipeline(folder, "CPU", extensions=[str(ovspec.extension_path())])`."""
_PYTHON_ALONE = 'pipe = ovspec.LLMPipeline(".", "CPU")'
_PYTHON_PAIR = """\
draft = ovspec.draft_model("{draft}")
pipe = ovspec.LLMPipeline(".", "CPU", draft_model=draft, verify=ovspec.SparseVerify())"""


def model_card(
    config: OvspecConfig, *, is_hub_id: bool, draft_source: str | None, options: Mapping[str, Any]
) -> str:
    """Return the Markdown text of the card.

    `is_hub_id` says whether ``config.model.source`` names a model on the Hugging Face Hub: only then is
    it a ``base_model`` the Hub can link. `options` are the compression options that were given.
    """
    model, positions = config.model, config.model.max_position_embeddings
    given = ", ".join(f"{key}={_short(value)}" for key, value in options.items())
    weights = model.weight_format + (f" ({given})" if given else "")
    python = _PYTHON_ALONE if config.draft_model is None else _PYTHON_PAIR.format(draft=config.draft_model)
    draft = draft_source and f"`{draft_source}` in `{config.draft_model}/`"
    operations = ", ".join(config.operations)
    names = {key.replace("_", "-"): value for key, value in asdict(config.created_by).items() if value}
    return _CARD.format(
        front_matter=_front_matter(config, is_hub_id),
        name=model.source.split("/")[-1],
        source=model.source,
        model_type=model.model_type,
        weights=weights,
        elsewhere=(_BAKED_IR if config.operations else _PLAIN_IR).format(operations=operations),
        python=python,
        draft=f", with the draft model {draft}" if draft else "",
        draft_row=draft or "none",
        layers=model.num_hidden_layers,
        heads=model.num_attention_heads,
        kv_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        vocab=f"{model.vocab_size:,}",
        context="no limit stated" if positions is None else f"{positions:,}",
        versions=", ".join(f"{name} {version}" for name, version in names.items()) or "unknown versions",
    )


def _front_matter(config: OvspecConfig, is_hub_id: bool) -> str:
    lines = ["library_name: ovspec", "pipeline_tag: text-generation"]
    if is_hub_id:
        lines.append(f"base_model: {config.model.source}")
        if config.model.weight_format in ("int8", "int4"):
            lines.append("base_model_relation: quantized")
    tags = ["openvino", "ovspec", "speculative-decoding", config.model.model_type, config.model.weight_format]
    return "\n".join([*lines, "tags:", *(f"- {tag}" for tag in tags)])


def _short(value: Any) -> str:
    return f"{len(value)} texts" if isinstance(value, list) else str(value)
