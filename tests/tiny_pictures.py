"""Tiny checkpoints with random weights of models that read pictures, and pictures to show them."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from PIL import Image, ImageDraw
from tiny_checkpoints import _DEMO, with_noise
from tiny_sizes import LINEAR

_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
_QWEN_NAMES = ("im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad")
_QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_QWEN3_PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_CLIP_MEAN, _CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


@dataclass(frozen=True)
class TinyVisual:
    """One checkpoint.

    Attributes:
        config, model: classes in transformers.
        special_tokens: that the tokenizer gets, with their names.
        template: of chats.
        preprocessor: what is written as preprocessor_config.json.
        make: arguments of the configuration, of token ids by their names.
        capped: configurations of optimum-intel that refuse the transformers at hand.
        hybrid: type of the text model where some layers keep a state; its export needs help.
    """

    config: str
    model: str
    special_tokens: tuple[str, ...]
    template: str
    preprocessor: dict[str, Any]
    make: Callable[[dict[str, int]], dict[str, Any]]
    capped: tuple[str, ...] = ()
    hybrid: str = ""
    vocab_size: int = field(default=4112)


def _qwen2_5(ids: dict[str, int]) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    return {
        "text_config": {**_TEXT, "vocab_size": 4112, "rope_parameters": rope, "use_sliding_window": False},
        "vision_config": {
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_heads": 4,
            "out_hidden_size": 64,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "initializer_range": 0.2,
        },
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
    }


_GEMMA_NAMES = ("start_of_turn", "end_of_turn", "start_of_image", "end_of_image", "image_soft_token")
_GEMMA_TEMPLATE = (
    "{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<start_of_image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def _gemma3(ids: dict[str, int]) -> dict[str, Any]:
    layers = ["sliding_attention", "full_attention"]
    sizes = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 128, "layer_types": layers}
    return {
        "text_config": {**_TEXT, "vocab_size": 4112, **sizes},
        "vision_config": {
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "image_size": 112,
            "patch_size": 14,
            "initializer_range": 0.2,
        },
        "mm_tokens_per_image": 16,
        "boi_token_index": ids["<start_of_image>"],
        "eoi_token_index": ids["<end_of_image>"],
        "image_token_index": ids["<image_soft_token>"],
    }


def _qwen3(ids: dict[str, int]) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    return {
        "text_config": {**_TEXT, "vocab_size": 4112, "rope_parameters": rope, "head_dim": 32},
        "vision_config": {
            "depth": 3,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_heads": 4,
            "out_hidden_size": 64,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
            "initializer_range": 0.2,
        },
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
    }


def _qwen3_5(ids: dict[str, int]) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_interleaved": True}
    rope |= {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25}
    given = _qwen3(ids)
    vision = {name: size for name, size in given["vision_config"].items() if "deepstack" not in name}
    text = {**given["text_config"], "rope_parameters": rope, **LINEAR}
    return {**given, "vision_config": vision, "text_config": text}


TINY_VISUAL = {
    "Qwen2.5-VL": TinyVisual(
        "Qwen2_5_VLConfig",
        "Qwen2_5_VLForConditionalGeneration",
        tuple(f"<|{name}|>" for name in _QWEN_NAMES),
        _QWEN_TEMPLATE,
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": 3136,
            "max_pixels": 12845056,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": _CLIP_MEAN,
            "image_std": _CLIP_STD,
        },
        _qwen2_5,
        ("Qwen2VLOpenVINOConfig", "Qwen2_5_VLOpenVINOConfig"),
    ),
    "Qwen3-VL": TinyVisual(
        "Qwen3VLConfig",
        "Qwen3VLForConditionalGeneration",
        tuple(f"<|{name}|>" for name in _QWEN_NAMES),
        _QWEN_TEMPLATE,
        _QWEN3_PREPROCESSOR,
        _qwen3,
        ("Qwen2VLOpenVINOConfig", "Qwen3VLOpenVINOConfig"),
    ),
    "Qwen3.5": TinyVisual(
        "Qwen3_5Config",
        "Qwen3_5ForConditionalGeneration",
        tuple(f"<|{name}|>" for name in _QWEN_NAMES),
        _QWEN_TEMPLATE,
        _QWEN3_PREPROCESSOR,
        _qwen3_5,
        ("Qwen3_5OpenVINOConfig", "Qwen3_5TextOpenVINOConfig"),
        "qwen3_5_text",
    ),
    "Gemma 3": TinyVisual(
        "Gemma3Config",
        "Gemma3ForConditionalGeneration",
        tuple(f"<{name}>" for name in _GEMMA_NAMES),
        _GEMMA_TEMPLATE,
        {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": 112, "width": 112},
            "resample": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "image_seq_length": 16,
        },
        _gemma3,
    ),
}


def write_visual_checkpoint(name: str, folder: Path) -> Path:
    """Save the model with the demo pair's tokenizer, and the tokens of pictures in it."""
    import torch
    import transformers

    tiny = TINY_VISUAL[name]
    tokenizer = transformers.AutoTokenizer.from_pretrained(_DEMO)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tiny.special_tokens)})
    tokenizer.chat_template = tiny.template
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tiny.special_tokens}
    torch.manual_seed(3)
    config = getattr(transformers, tiny.config)(**tiny.make(ids))
    model = getattr(transformers, tiny.model)(config).to(torch.float32).eval()
    with_noise(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _write_preprocessor(tiny, folder)
    return folder


def export_visual(name: str, folder: Path) -> None:
    """Write `checkpoint` and `ir` below a folder, the latter as optimum-intel exports it in f32."""
    from optimum.exporters.openvino import main_export, model_configs

    from ovspec_models.export import hybrid_export

    checkpoint, tiny = write_visual_checkpoint(name, folder / "checkpoint"), TINY_VISUAL[name]
    for config in tiny.capped:
        patch.object(getattr(model_configs, config), "MAX_TRANSFORMERS_VERSION", "5.5.4").start()
    # That context is for text models, as which it takes checkpoints with pictures.
    patch.object(hybrid_export, "_text_parts_exported", nullcontext).start()
    try:
        with hybrid_export.hybrid_exported(tiny.hybrid, "5.5.4"):
            main_export(
                str(checkpoint),
                output=folder / "ir",
                task="image-text-to-text",
                library_name="transformers",
                stateful=True,
                convert_tokenizer=True,
            )
    finally:
        patch.stopall()
    # optimum-intel writes it where transformers finds torchvision.
    _write_preprocessor(tiny, folder / "ir")


def _write_preprocessor(tiny: TinyVisual, folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(tiny.preprocessor), encoding="utf-8")


def shapes(width: int, height: int, seed: int) -> Image.Image:
    """A picture of drawn shapes, a line of text, and a gradient behind them."""
    red = Image.linear_gradient("L").resize((width, height))
    green = Image.radial_gradient("L").resize((width, height))
    picture = Image.merge("RGB", (red, green, red.point(lambda value: (value * (seed + 2)) % 256)))
    draw, third = ImageDraw.Draw(picture), (width // 3, height // 3)
    draw.ellipse((third[0] // 2, third[1] // 2, 2 * third[0], 2 * third[1]), fill=(250 - 20 * seed, 200, 10))
    draw.rectangle((third[0], third[1], width - 3, height - 3), outline=(20 * seed, 0, 255), width=3)
    draw.text((2, height // 2), f"picture {seed}", fill=(255, 255, 255))
    return picture


#: Wide, tall, small and large ones; one in grey, one with a palette, one with transparency.
PICTURES = [
    *(shapes(width, height, seed) for seed, (width, height) in enumerate([(150, 100), (64, 200), (30, 30)])),
    shapes(280, 280, 3),
    shapes(99, 57, 4).convert("L"),
    shapes(120, 90, 5).convert("P"),
    shapes(80, 80, 6).convert("RGBA"),
    Image.linear_gradient("L").resize((140, 112)).convert("RGB"),
    Image.new("RGB", (56, 84), (200, 30, 60)),
    shapes(200, 61, 9),
]


def without_pixels(form: str) -> bytes:
    """A file of this form that says it is 0 wide and 0 high."""
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, form)
    data = bytearray(file.getvalue())
    begin, end = {"PNG": (16, 24), "GIF": (6, 10), "BMP": (18, 26)}[form]
    data[begin:end] = bytes(end - begin)
    if form == "PNG":
        data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data[:10] + b";" * 20 if form == "GIF" else data)
