"""Small GGUF files of random weights, written by NumPy."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, LAYERS = 256, 512, 4, 2, 2
Rows = NDArray[np.float32]
Bytes = NDArray[np.uint8]
_F32, _F16 = 0, 1
MERGES = ["t h", "th e", "i n", "a n", "o n"]


def _halves(values: NDArray[Any]) -> Bytes:
    """f16 numbers as bytes, behind the last dimension."""
    return np.ascontiguousarray(values, np.float16)[..., None].view(np.uint8)


def _blocks(values: Rows, size: int) -> Rows:
    return values.reshape(-1, size)


def _pairs(q: Bytes) -> Bytes:
    """Integers of 4 bits `[blocks, 2 n]`: the first half of a block in the lower halves of n bytes."""
    half = q.shape[1] // 2
    return q[:, :half] | q[:, half:] << 4


def q4_0(values: Rows) -> Bytes:
    x = _blocks(values, 32)
    d = (np.abs(x).max(1, keepdims=True) / 7).astype(np.float16).astype(np.float32)
    q = np.clip(np.round(x / d) + 8, 0, 15).astype(np.uint8)
    return np.concatenate([_halves(d)[:, 0], _pairs(q)], 1)


def q4_1(values: Rows) -> Bytes:
    """The lowest value is a whole number of steps, as the reader keeps it."""
    x = _blocks(values, 32)
    low, high = np.minimum(x.min(1, keepdims=True), 0), np.maximum(x.max(1, keepdims=True), 0)
    d = ((high - low) / 14).astype(np.float16).astype(np.float32)
    zero = np.round(-low / d)
    q = np.clip(np.round(x / d) + zero, 0, 15).astype(np.uint8)
    return np.concatenate([_halves(d)[:, 0], _halves(-zero * d)[:, 0], _pairs(q)], 1)


def q8_0(values: Rows) -> Bytes:
    x = _blocks(values, 32)
    d = (np.abs(x).max(1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    return np.concatenate(
        [_halves(d)[:, 0], np.round(x / d).clip(-127, 127).astype(np.int8).view(np.uint8)], 1
    )


def q4_k(values: Rows) -> Bytes:
    x = values.reshape(-1, 8, 32)
    low, high = np.minimum(x.min(2), 0), np.maximum(x.max(2), 0)
    steps = (high - low) / 14
    d = (steps.max(1, keepdims=True) / 63).astype(np.float16).astype(np.float32)
    scales = np.clip(np.round(steps / d), 1, 63).astype(np.uint8)
    d_low = (-low.min(1, keepdims=True) / 63 + 1e-6).astype(np.float16).astype(np.float32)
    lows = np.clip(np.round(-low / d_low), 0, 63).astype(np.uint8)
    q = np.round((x + (d_low * lows)[..., None]) / (d * scales)[..., None]).clip(0, 15).astype(np.uint8)
    packed = [
        scales[:, :4] | scales[:, 4:] >> 4 << 6,
        lows[:, :4] | lows[:, 4:] >> 4 << 6,
        scales[:, 4:] & 15 | lows[:, 4:] << 4,
    ]
    data = [_pairs(q[:, 2 * i : 2 * i + 2].reshape(-1, 64)) for i in range(4)]
    return np.concatenate([_halves(d)[:, 0], _halves(d_low)[:, 0], *packed, *data], 1)


def q6_k(values: Rows) -> Bytes:
    x = values.reshape(-1, 16, 16)
    steps = np.abs(x).max(2) / 31
    d = (steps.max(1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    scales = np.clip(np.round(steps / d), 1, 127).astype(np.int8)
    q = (np.round(x / (d * scales)[..., None]).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = [q[:, i, j] & 15 | (q[:, i, j + 2] & 15) << 4 for i in range(2) for j in range(2)]
    high = [
        sum((q[:, i, j] >> 4 << 2 * j for j in range(4)), np.zeros((len(q), 32), np.uint8)) for i in range(2)
    ]
    return np.concatenate([*low, *high, scales.view(np.uint8), _halves(d)[:, 0]], 1)


QUANTISERS: dict[str, tuple[int, Callable[[Rows], Bytes]]] = {
    "F16": (_F16, lambda values: _halves(values.reshape(1, -1)).reshape(1, -1)),
    "Q4_0": (2, q4_0),
    "Q4_1": (3, q4_1),
    "Q8_0": (8, q8_0),
    "Q4_K": (12, q4_k),
    "Q6_K": (14, q6_k),
}


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    assert isinstance(value, list)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def byte_tokens() -> list[str]:
    """The letters that stand for bytes in byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, others = dict(zip(shown, map(chr, shown), strict=True)), 0
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + others)
            others += 1
    return [letters[byte] for byte in range(256)]


@dataclass
class GgufModel:
    """A random model; `metadata` and `tensors` may be changed before it is written."""

    family: str = "llama"
    kind: str = "Q4_0"
    embedding: str = "F16"
    seed: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[str, NDArray[np.float32]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tokens = ["<|end|>", "<|im_start|>", *byte_tokens(), *(merge.replace(" ", "") for merge in MERGES)]
        name = self.family
        self.metadata = {
            "general.architecture": name,
            "general.file_type": 1 if self.kind == "F16" else 2,
            f"{name}.block_count": LAYERS,
            f"{name}.context_length": 512,
            f"{name}.embedding_length": HIDDEN,
            f"{name}.feed_forward_length": FEED_FORWARD,
            f"{name}.attention.head_count": HEADS,
            f"{name}.attention.head_count_kv": KV_HEADS,
            f"{name}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{name}.rope.freq_base": 10000.0,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3, 3, *[1] * (len(tokens) - 2)],
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.eos_token_id": 0,
            "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}{% endfor %}",
        }
        rng = np.random.default_rng(self.seed)

        def matrix(out: int, inputs: int) -> Rows:
            return (rng.standard_normal((out, inputs)) / inputs**0.5).astype(np.float32)

        self.tensors["token_embd.weight"] = (self.embedding, matrix(len(tokens), HIDDEN))
        self.tensors["output_norm.weight"] = ("F32", np.ones(HIDDEN, np.float32))
        kv, head = HIDDEN // HEADS * KV_HEADS, HIDDEN // HEADS
        sizes = {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (FEED_FORWARD, HIDDEN),
            "ffn_up": (FEED_FORWARD, HIDDEN),
            "ffn_down": (HIDDEN, FEED_FORWARD),
        }
        for layer in range(LAYERS):
            for part, size in sizes.items():
                self.tensors[f"blk.{layer}.{part}.weight"] = (self.kind, matrix(*size))
                if self.family == "qwen2" and part in ("attn_q", "attn_k", "attn_v"):
                    bias = rng.standard_normal(size[0]).astype(np.float32) / 8
                    self.tensors[f"blk.{layer}.{part}.bias"] = ("F32", bias)
            norms = ["attn_norm", "ffn_norm"]
            for norm in norms:
                scale = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
                self.tensors[f"blk.{layer}.{norm}.weight"] = ("F32", scale)
            if self.family == "qwen3":
                for norm in ("attn_q_norm", "attn_k_norm"):
                    scale = rng.uniform(0.5, 1.5, head).astype(np.float32)
                    self.tensors[f"blk.{layer}.{norm}.weight"] = ("F32", scale)

    def write(self, path: Path) -> Path:
        """Write the file."""
        path.write_bytes(self.content())
        return path

    def content(self) -> bytes:
        """The bytes of the file."""
        head = [struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.metadata))]
        head += [_text(key) + _value(value) for key, value in self.metadata.items()]
        data: list[bytes] = []
        at = 0
        for name, (kind, values) in self.tensors.items():
            number, stored = (_F32, values) if kind == "F32" else _quantised(kind, values)
            dims = values.shape[::-1]
            head.append(_text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, at))
            data.append(_padded(stored.tobytes()))
            at += len(data[-1])
        return _padded(b"".join(head)) + b"".join(data)


def _quantised(kind: str, values: Rows) -> tuple[int, Bytes]:
    number, quantise = QUANTISERS[kind]
    return number, quantise(values)


def _padded(content: bytes | Iterable[bytes]) -> bytes:
    whole = content if isinstance(content, bytes) else b"".join(content)
    return whole + bytes(-len(whole) % 32)
