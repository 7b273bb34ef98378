"""Model types that can't be served."""

from __future__ import annotations

_NO_ATTENTION = "they have no attention, and so no keys and values to page or to read sparsely"
_WRITTEN_OUT = "transformers writes their attention out, and OpenVINO pages one operation only"
#: Types whose graphs can't be paged, and why.
UNPAGED = {
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), _NO_ATTENTION),
    **dict.fromkeys(("gpt_neox_japanese", "xglm"), _WRITTEN_OUT),
    "diffllama": "they compute with cached values before attention, and OpenVINO pages values as they are",
}
#: Types whose attention is over latents, exported by their authors' code alone.
LATENT = ("deepseek_v2", "deepseek_v3", "minicpm3")
