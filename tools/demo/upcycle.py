"""Make a small mixture of experts out of the demo target, and fine-tune it.

    python tools/demo/upcycle.py --data PACKED --out OUT/moe --minutes 7

Every expert begins as a random part of a layer's feed-forward channels, one in `--top-k`, its output as many
times larger, so that a row costs what it cost before. The router begins at random. The rest is the target's.
"""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import torch
from documents import STREAMS, Corpus
from torch.nn.functional import cross_entropy
from train import Batches, held_out_loss, optimizer_of, save
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

DEMO = Path(__file__).resolve().parent
LEARNING_RATE, WARM_UP_STEPS, BALANCE = 1e-3, 10, 0.01


def upcycled(target: Qwen3ForCausalLM, experts: int, top_k: int) -> Qwen3MoeForCausalLM:
    """The target with `experts` in place of every feed-forward layer, `top_k` of them for a row."""
    dense = target.config
    size = dense.intermediate_size // top_k
    shared = {
        name: getattr(dense, name)
        for name in (
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
            *("head_dim", "max_position_embeddings", "tie_word_embeddings", "rms_norm_eps"),
            *("bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters"),
        )
    }
    config = Qwen3MoeConfig(
        **shared,
        num_experts=experts,
        num_experts_per_tok=top_k,
        moe_intermediate_size=size,
        norm_topk_prob=True,
    )
    model = Qwen3MoeForCausalLM(config)
    found = model.load_state_dict(target.state_dict(), strict=False)
    new = [name for name in found.missing_keys if ".mlp." not in name and name != "lm_head.weight"]
    if new:
        raise SystemExit(
            f"the target has no {new[0]}, which the mixture needs: another transformers release?"
        )
    for layer, from_layer in zip(model.model.layers, target.model.layers, strict=True):
        fill(layer.mlp, from_layer.mlp, size, top_k)
    return model


@torch.no_grad()
def fill(mixture: torch.nn.Module, dense: torch.nn.Module, size: int, top_k: int) -> None:
    """Copy a random subset of the dense layer's channels to every expert."""
    torch.nn.init.normal_(mixture.gate.weight, std=0.02)
    gate, up, down = (getattr(dense, f"{name}_proj").weight for name in ("gate", "up", "down"))
    for index in range(mixture.gate.weight.shape[0]):
        kept = torch.randperm(gate.shape[0])[:size]
        mixture.experts.gate_up_proj[index] = torch.cat([gate[kept], up[kept]])
        mixture.experts.down_proj[index] = top_k * down[:, kept]


def fine_tune(
    model: Qwen3MoeForCausalLM, batches: Batches, minutes: float, every: int, bf16: bool, out: Path
) -> None:
    """Train on next tokens, and on an even use of the experts, for a given number of minutes."""
    optimizer = optimizer_of(model, LEARNING_RATE)  # type: ignore[arg-type]
    start, step = time.monotonic(), 0
    model.train()
    while (progress := (time.monotonic() - start) / (60 * minutes)) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * max(0.05, 1.0 - progress)
        inputs, following = batches.draw("cpu")
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            found = model(inputs, output_router_logits=True)
        loss = cross_entropy(found.logits.float().flatten(0, 1), following.flatten())
        optimizer.zero_grad(set_to_none=True)
        (loss + BALANCE * found.aux_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % every == 0:
            seconds = time.monotonic() - start
            print(f"step {step}, {seconds:.0f} s, loss {loss.item():.3f}", flush=True)
    save(model, batches.tokenizer, out)  # type: ignore[arg-type]
    held = batches.corpus.held
    shown = ", ".join(f"{name} {held_out_loss(model, held[name]):.3f}" for name in STREAMS)
    print(f"{step} steps of {batches.rows * batches.length} tokens; held out, nats per token: {shown}")


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that prepare.py has made")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint to write")
    parser.add_argument("--target", type=Path, default=DEMO / "target")
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--length", type=int, default=256, help="tokens per row")
    parser.add_argument("--batch-tokens", type=int, default=1024, help="tokens per step")
    parser.add_argument("--every", type=int, default=50, help="steps between reports")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bf16", action="store_true", help="mixed precision (slow on a CPU without AVX-512)")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    corpus = Corpus.load(arguments.data)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.target)
    target = Qwen3ForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    model = upcycled(target, arguments.experts, arguments.top_k)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    rows = arguments.batch_tokens // arguments.length
    batches = Batches(corpus, tokenizer, arguments.length, rows, random.Random(arguments.seed))
    fine_tune(model, batches, arguments.minutes, arguments.every, arguments.bf16, arguments.out)


if __name__ == "__main__":
    main()
