"""Answers of transformers to prompts with pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


class Reference:
    """A checkpoint in f32, its slow processor of pictures, and its tokenizer."""

    def __init__(self, checkpoint: Path) -> None:
        import torch
        import transformers
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        kind = json.loads((checkpoint / "config.json").read_text())["architectures"][0]
        self.model = getattr(transformers, kind).from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
        values = json.loads((checkpoint / "preprocessor_config.json").read_text())
        self._is_gemma = values.pop("image_processor_type") == "Gemma3ImageProcessor"
        processor = Gemma3ImageProcessorPil if self._is_gemma else Qwen2VLImageProcessorPil
        self._processor = processor(**values)

    def answer(self, parts: Sequence[str | Image.Image], new_tokens: int) -> list[int]:
        """Greedy tokens to one message of texts and pictures."""
        import torch

        inputs = self.inputs(parts)
        length = inputs["input_ids"].shape[1]
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": new_tokens, "eos_token_id": None}
        with torch.no_grad():
            found = self.model.generate(**inputs, **options, attention_mask=torch.ones(1, length))
        answer: list[int] = found[0, length:].tolist()
        return answer

    def inputs(self, parts: Sequence[str | Image.Image]) -> dict[str, Any]:
        """What the model is given, as its processor makes it."""
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts
        ]
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        pictures = [part for part in parts if not isinstance(part, str)]
        if not pictures:
            return {"input_ids": self._tokens(text)}
        made = dict(self._processor(images=pictures, return_tensors="pt"))
        return self._of_gemma(text, made) if self._is_gemma else self._of_qwen(text, made)

    def _of_qwen(self, text: str, made: dict[str, Any]) -> dict[str, Any]:
        merged = self._processor.merge_size**2
        head, *rest = text.split("<|image_pad|>")
        for count, behind in zip(made["image_grid_thw"].prod(1).tolist(), rest, strict=True):
            head += "<|image_pad|>" * (count // merged) + behind
        tokens = self._tokens(head)
        kinds = (tokens == self.model.config.image_token_id).int()
        return {"input_ids": tokens, "mm_token_type_ids": kinds, **made}

    def _of_gemma(self, text: str, made: dict[str, Any]) -> dict[str, Any]:
        del made["num_crops"]
        rows = "<image_soft_token>" * self.model.config.mm_tokens_per_image
        tokens = self._tokens(
            text.replace("<start_of_image>", f"\n\n<start_of_image>{rows}<end_of_image>\n\n")
        )
        kinds = (tokens == self.model.config.image_token_id).int()
        return {"input_ids": tokens, "token_type_ids": kinds, **made}

    def _tokens(self, text: str) -> Any:
        return self.tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids


def on_white(picture: Image.Image) -> Image.Image:
    """The picture without transparency, as Qwen's own tools give it to the processor."""
    if picture.mode != "RGBA":
        return picture.convert("RGB")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def pixels(picture: Image.Image) -> NDArray[np.uint8]:
    """As openvino_genai takes pictures, u8 `[height, width, 3]`."""
    return np.array(on_white(picture))
