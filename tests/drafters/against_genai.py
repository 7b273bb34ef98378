"""One EAGLE-3 head in ovspec and in OpenVINO GenAI: `python tests/drafters/against_genai.py`.

Both get the same target and the same head, and answer the same prompts greedily with drafts of four tokens; a
round of one follows a round of the other. Without `--target` it is the demo pair. Prints JSON: tokens per
pass, tokens/s of whole answers, prompts included, and whether the texts are the same.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import openvino as ov
import openvino_genai as genai

import ovspec
from ovspec.drafters.eagle3 import eagle3_boundaries
from ovspec_models import ModelInfo, demo_pair_path
from ovspec_models.folder.head_info import HeadInfo
from ovspec_transforms.graph import find_parameter
from ovspec_transforms.heads.gather_logits import lm_head
from ovspec_transforms.heads.hidden_states import token_embedding

PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
PROMPTS = (
    "Once upon a time, there was a little girl",
    "One day, Tom and his friend went to the park",
    "It was a dark night, and the old man",
    "Question: Anna has 12 apples and gives",
    "A train travels 60 miles in one hour.",
    "My dear sir, I have the honour to",
)
DRAFTED = 4


def write_head(head: Path, target: Path, out: Path, shift: int) -> None:
    """Copy a head's folder, with what GenAI looks for in its IR.

    GenAI finds the embedding and the state after the layer by their names, reads states of a size that is not
    said, and takes the end of a text from the draft's folder. `hidden_layers_list` are layers whose output it
    reads, so layer i is boundary i + 1; without it GenAI would read the outputs of layers 2, N / 2 and N - 3,
    each one layer behind what the paper's authors read; `shift` is added to the list.
    """
    model, info = ov.Core().read_model(head / "openvino_model.xml"), HeadInfo.read(head)
    boundaries = info.boundaries or eagle3_boundaries(ModelInfo.read(target).num_hidden_layers)
    model.set_rt_info([boundary - 1 + shift for boundary in boundaries], ["hidden_layers_list"])
    states = find_parameter(model, "hidden_states")
    states.set_partial_shape(ov.PartialShape([-1, -1, -1]))
    token_embedding(model).input(0).get_source_output().get_node().set_friendly_name("embed_tokens.weight")
    last_residual(model).set_friendly_name("__module.midlayer/aten::add/Add_1")
    for node in model.get_ordered_ops():
        if "d2t" in (node.output(0).get_names() if node.get_output_size() else ()):
            node.set_friendly_name("d2t")
    model.validate_nodes_and_infer_types()
    out.mkdir()
    ov.save_model(model, out / "openvino_model.xml", compress_to_fp16=False)
    for folder, name in ((head, "config.json"), (target, "generation_config.json")):
        shutil.copy(folder / name, out / name)


def last_residual(model: ov.Model) -> ov.Node:
    """The sum that the norm before the output layer reads."""
    pending = [lm_head(model.output("logits").get_node())]
    while pending:
        node = pending.pop(0)
        sources = [port.get_source_output().get_node() for port in node.inputs()]
        if node.get_type_name() == "Add" and sources[1].get_type_name() == "MatMul":
            return node
        pending += sources
    raise SystemExit("the head has no residual stream")


class Ours:
    """ovspec's pipeline."""

    def __init__(self, target: Path, head: Path | None) -> None:
        draft = head and ovspec.draft_model(head)
        drafter = "assistant" if head else "none"
        self._pipeline = ovspec.LLMPipeline(target, "CPU", draft_model=draft, drafter=drafter, **PROPERTIES)
        self._options: dict[str, Any] = {}
        if head:
            self._options = {"num_assistant_tokens": DRAFTED, "num_assistant_tokens_schedule": "constant"}

    def answer(self, prompt: ov.Tensor, tokens: int) -> tuple[list[int], int]:
        """The answer, and the passes of the target that gave it, without the prompt's."""
        found = self._pipeline.generate(prompt, max_new_tokens=tokens, ignore_eos=True, **self._options)
        return list(found.tokens[0]), len(found.perf_metrics.raw_metrics.accepted_lengths) or tokens - 1


class Theirs:
    """OpenVINO GenAI's pipeline."""

    def __init__(self, target: Path, head: Path | None) -> None:
        draft: dict[str, Any] = {}
        if head:
            draft["draft_model"] = genai.draft_model(head, "CPU", **PROPERTIES)
        self._pipeline = genai.LLMPipeline(target, "CPU", **draft, **PROPERTIES)
        self._config = self._pipeline.get_generation_config()
        self._config.ignore_eos = True
        if head:
            self._config.num_assistant_tokens = DRAFTED

    def answer(self, prompt: ov.Tensor, tokens: int) -> tuple[list[int], int]:
        """As `Ours.answer`."""
        self._config.max_new_tokens = tokens
        found = self._pipeline.generate(prompt, self._config)
        metrics = found.extended_perf_metrics  # `None` without a draft
        counted = metrics.main_model_metrics.raw_metrics.m_durations if metrics else [0.0] * tokens
        return list(found.tokens[0]), len(counted) - 1


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, help="folder of the target")
    parser.add_argument("--head", type=Path, help="folder of its EAGLE-3 head")
    parser.add_argument("--shift", type=int, default=0, help="of the layers that GenAI reads")
    parser.add_argument("--tokens", type=int, default=120, help="of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    target: Path = given.target or demo_pair_path()
    tokenizer = genai.Tokenizer(target)
    prompts = [tokenizer.encode(prompt).input_ids for prompt in PROMPTS]
    with tempfile.TemporaryDirectory() as made:
        source = given.head or target / "eagle3"
        write_head(source, target, Path(made) / "head", given.shift)
        engines: dict[str, Any] = {
            "genai plain": Theirs(target, None),
            "ovspec plain": Ours(target, None),
            "genai eagle3": Theirs(target, Path(made) / "head"),
            "ovspec eagle3": Ours(target, source),
        }
        texts: dict[str, list[list[int]]] = {}
        passes, rates = dict.fromkeys(engines, 0), {name: list[float]() for name in engines}
        for lap in range(given.rounds + 1):  # the first warms up
            for name, engine in engines.items():
                begin = time.perf_counter()
                found = [engine.answer(prompt, given.tokens) for prompt in prompts]
                seconds = time.perf_counter() - begin
                texts[name], passes[name] = [text for text, _ in found], sum(count for _, count in found)
                if lap:
                    rates[name].append(len(prompts) * given.tokens / seconds)
                print(name, passes[name], seconds, file=sys.stderr, flush=True)
    decoded = len(prompts) * (given.tokens - 1)  # the first token of an answer comes from its prompt
    report = {
        name: {
            "tokens_per_pass": decoded / passes[name],
            "tokens_s": median(rates[name]),
            "runs": rates[name],
            "texts_as_first": texts[name] == texts["genai plain"],
        }
        for name in engines
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
