"""Train the demo target on next tokens, or distil the demo draft from it.

    python tools/demo/train.py target --data PACKED --out OUT/target --minutes 60 [--continue-from OLD]
    python tools/demo/train.py draft  --data PACKED --out OUT/draft  --minutes 30 --target OUT/target

Three rows in ten are synthetic: facts to recall from far back, and repeated passages, which teach copying.
"""

from __future__ import annotations

import copy
import random
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from documents import Corpus, cut, recall_document, repeat_document, windows
from evaluate import loss_on
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
SHAPES = {"target": (256, 768, 6, 4, 2), "draft": (128, 384, 2, 2, 1)}
LEARNING_RATE = {"target": 1.5e-3, "draft": 3e-3}
# Share of rows by kind; the names of the packed streams, and the two synthetic kinds.
MIXTURE = {"recall": 0.15, "repeat": 0.15, "books": 0.28, "sums": 0.20, "stories": 0.22}
WARM_UP_STEPS = 100
HELD_LENGTH, HELD_WINDOWS = 512, 16


@dataclass(frozen=True)
class Batches:
    """Draws rows of ``length + 1`` ids according to MIXTURE."""

    corpus: Corpus
    tokenizer: PreTrainedTokenizerBase
    length: int
    rows: int
    rng: random.Random

    def draw(self, device: str) -> tuple[Tensor, Tensor]:
        """Return inputs and next tokens, both int64 `[rows, length]`."""
        kinds = self.rng.choices(list(MIXTURE), weights=list(MIXTURE.values()), k=self.rows)
        ids = torch.tensor([self._row(kind) for kind in kinds], device=device)
        return ids[:, :-1], ids[:, 1:]

    def _row(self, kind: str) -> list[int]:
        size = self.length + 1
        if kind == "recall":
            return recall_document(self.tokenizer, self.corpus.train["books"], size, self.rng)
        if kind == "repeat":
            return repeat_document(self.corpus.train["books"], len(self.tokenizer), size, self.rng)
        return cut(self.corpus.train[kind], size, self.rng)


def new_model(role: str, vocab_size: int) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=vocab_size,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
        rope_theta=100_000.0,
        **dict(zip(SIZES, SHAPES[role], strict=True)),
    )
    return Qwen3ForCausalLM(config)


def optimizer_of(model: Qwen3ForCausalLM, learning_rate: float) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


def schedule(step: int, progress: float) -> float:
    """Return the factor of the learning rate: warm up, hold for 0.3 of the time, then fall to 0.02."""
    decay = 1.0 if progress < 0.3 else max(0.02, (1.0 - progress) / 0.7)
    return min(1.0, (step + 1) / WARM_UP_STEPS) * decay


def held_out_loss(model: PreTrainedModel, stream: NDArray[np.uint16]) -> float:
    """Return nats per token on windows of a held-out stream."""
    model.eval()
    loss = loss_on(model, windows(stream, HELD_LENGTH + 1, HELD_WINDOWS))
    model.train()
    return loss


def loss_of(
    model: Qwen3ForCausalLM, teacher: Qwen3ForCausalLM | None, inputs: Tensor, following: Tensor
) -> Tensor:
    """Return cross entropy, or KL(teacher || model) where there is a teacher, in nats per token."""
    logits = model(inputs).logits.float()
    if teacher is None:
        return cross_entropy(logits.flatten(0, 1), following.flatten())
    with torch.no_grad():
        wanted = teacher(inputs).logits.float().log_softmax(-1)
    return kl_div(logits.log_softmax(-1), wanted, log_target=True, reduction="none").sum(-1).mean()


def train(
    model: Qwen3ForCausalLM, teacher: Qwen3ForCausalLM | None, batches: Batches, arguments: Namespace
) -> None:
    device, highest = arguments.device, LEARNING_RATE[arguments.role]
    optimizer = optimizer_of(model, highest)
    start, step, average = time.monotonic(), 0, 0.0
    model.train()
    while (progress := (time.monotonic() - start) / (60 * arguments.minutes)) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = highest * schedule(step, progress)
        inputs, following = batches.draw(device)
        with torch.autocast(device, torch.bfloat16, enabled=arguments.bf16):
            loss = loss_of(model, teacher, inputs, following)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average = 0.98 * average + 0.02 * loss.item() if step else loss.item()
        step += 1
        if step % arguments.every == 0:
            seconds, seen = time.monotonic() - start, step * batches.rows * batches.length
            held = held_out_loss(model, batches.corpus.held["books"])
            print(
                f"{arguments.role} {seconds / 60:.1f} min, step {step}, {seen / 1e6:.2f} M tokens, "
                f"loss {average:.3f}, held-out {held:.3f}, {seen / seconds:.0f} tokens/s",
                flush=True,
            )
            save(model, batches.tokenizer, arguments.out)
    save(model, batches.tokenizer, arguments.out)
    held = held_out_loss(model, batches.corpus.held["books"])
    print(f"{arguments.role}: {step} steps, held-out {held:.3f} nats per token")


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write the checkpoint as bf16; the model in memory keeps training in f32."""
    # A copy, not a converted state dict: that would store the tied embedding twice.
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def parse() -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=list(SHAPES))
    parser.add_argument("--data", type=Path, required=True, help="folder that prepare.py has made")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint to write")
    parser.add_argument(
        "--continue-from", type=Path, help="checkpoint folder to start from (default: random weights)"
    )
    parser.add_argument("--target", type=Path, help="target to distil from (draft only)")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--length", type=int, default=512, help="tokens per row")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens per step")
    parser.add_argument("--every", type=int, default=200, help="steps between reports, which also save")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="mixed precision (slow on a CPU without AVX-512)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    if (arguments.role == "draft") != (arguments.target is not None):
        parser.error("--target is needed to train the draft, and only then")
    if arguments.length < 256 or arguments.batch_tokens < arguments.length:
        parser.error("--length must be at least 256, and --batch-tokens at least --length")
    return arguments


def main() -> None:
    arguments = parse()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    corpus = Corpus.load(arguments.data)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.data / "tokenizer")
    if arguments.continue_from is None:
        model = new_model(arguments.role, len(tokenizer))
    else:
        model = Qwen3ForCausalLM.from_pretrained(arguments.continue_from, dtype=torch.float32)
    model.to(arguments.device)
    teacher = None
    if arguments.target is not None:
        teacher = Qwen3ForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
        teacher.to(arguments.device).eval()
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{arguments.role}: {parameters / 1e6:.2f} M parameters", flush=True)
    rng = random.Random(arguments.seed)
    batches = Batches(corpus, tokenizer, arguments.length, arguments.batch_tokens // arguments.length, rng)
    train(model, teacher, batches, arguments)


if __name__ == "__main__":
    main()
