"""lm-evaluation-harness on the demo model, with tasks and data of local files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import one_line, ovspec
from generation.small_tokenizers import write
from made_once import MakeOnce
from openvino_genai import Tokenizer
from settings import F32 as PROPERTIES

from ovspec import LLMPipeline
from ovspec.engine.requests.request import Request
from ovspec.generation.inputs import tokenized
from ovspec_models import demo_pair_path

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'ovspec[eval]'")
from lm_eval.api.instance import Instance

from ovspec.eval.harness import OvspecLM

F32 = ("--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32")
BEGIN = "Once upon a time, there was a little girl named"
STORIES = [
    {
        "begin": BEGIN,
        "ends": [" Lily. She loved to play", " zxq wq ]] vv ((", " engine of the tax"],
        "right": 0,
    },
    {"begin": "The dog ran to the", "ends": [" ]] (( zx", " park and played"], "right": 1},
]
TASKS = {
    "tiny_choice": """
        output_type: multiple_choice
        doc_to_text: "{{begin}}"
        doc_to_choice: "{{ends}}"
        doc_to_target: right
        target_delimiter: ""
        metric_list: [{metric: acc}]
    """,
    "tiny_text": """
        output_type: loglikelihood_rolling
        doc_to_text: ""
        doc_to_target: "{{begin}}{{ends[right]}}"
        metric_list: [{metric: word_perplexity}]
    """,
    "tiny_answer": """
        output_type: generate_until
        doc_to_text: "{{begin}}"
        doc_to_target: "{{ends[right]}}"
        generation_kwargs: {until: ["."], max_gen_toks: 12, do_sample: false}
        metric_list: [{metric: exact_match}]
    """,
}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, STORIES)), encoding="utf-8")
    for name, body in TASKS.items():
        head = [f"task: {name}", "dataset_path: json", "test_split: test"]
        head.append(f"dataset_kwargs: {{data_files: {{test: {data}}}}}")
        lines = [*head, *(line.strip() for line in body.strip().splitlines())]
        (tmp_path / f"{name}.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def harness(tasks: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    given = ("-m", demo_pair_path(), "--tasks", ",".join(TASKS), "--include-path", tasks, *F32)
    command = [sys.executable, "-m", "ovspec", "eval", "lm", *map(str, (*given, *arguments))]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tasks / "home")}
    return subprocess.run(
        command, env={**os.environ, **offline}, capture_output=True, text=True, timeout=600, check=False
    )


def report(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results and configuration in the harness's file."""
    (path,) = folder.rglob("results_*.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["results"], found["config"]


def test_three_kinds_of_tasks(tasks: Path) -> None:
    run = harness(tasks, "--", "--output_path", str(tasks / "out"), "--log_samples")
    assert run.returncode == 0, run.stderr
    found, config = report(tasks / "out")
    assert "LOSSY" not in run.stdout and (config["prefill"], config["why_lossy"]) == ("dense", None)
    assert found["tiny_choice"]["acc,none"] == 1.0
    assert 1.0 < found["tiny_text"]["word_perplexity,none"] < 1000.0
    (samples,) = (tasks / "out").rglob("samples_tiny_answer_*.jsonl")
    answers = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    assert answers[0]["resps"] == [[" Lily"]]  # up to the full stop
    table = re.search(r"\|tiny_choice\s*\|.*", run.stdout)
    assert table and "acc" in table[0]


def test_a_sparse_setting_and_drafts(tasks: Path) -> None:
    sparse = ("--verify", "sparse", "--budget", "4096", "--prefill", "sparse", "--num-assistant-tokens", "4")
    run = harness(tasks, "--limit", "1", *sparse, "--", "--output_path", str(tasks / "out"))
    assert run.returncode == 0, run.stderr
    assert "tiny_answer" in run.stdout
    *_, last = run.stdout.splitlines()
    _, config = report(tasks / "out")
    assert last == f"LOSSY: {config['why_lossy']}"
    assert "sparse verification" in last and "sparse prefill" in last


def test_prompts_keep_their_tokens(make_once: MakeOnce) -> None:
    """The first token of texts comes once; a prompt that is too long loses its first tokens alone."""
    tokenizer = Tokenizer(
        str(make_once("tokenizer SentencePiece", lambda path: write("SentencePiece", path)))
    )
    pipeline = LLMPipeline(demo_pair_path(), tokenizer, "CPU", max_context=64, **PROPERTIES)
    first, model = tokenizer.get_bos_token_id(), OvspecLM(pipeline, "demo")
    plain = tokenized(tokenizer, "<s>Once upon a time", special_tokens=False)
    assert plain.count(first) == 1
    assert model.tok_encode("<s>Once upon a time") == plain
    assert model.tok_encode("Once upon a time").count(first) == 1
    prompt = "<s>" + "<|im_start|>  Once upon a time<|im_end|>" * 20
    limit, settings = 24, {"max_gen_toks": 24, "until": [], "do_sample": False}
    tokens = model.tok_encode(prompt)[limit - 64 :]
    request = pipeline.settings(max_new_tokens=limit, do_sample=False)
    outputs = pipeline.engine.run([Request("direct", tokens, request)])
    direct = tokenizer.decode([token for output in outputs for token in output.token_ids])
    ask = Instance("generate_until", {}, (prompt, settings), 0)
    assert model.generate_until([ask], disable_tqdm=True) == [direct]
    stop = direct[3:6]
    until = Instance("generate_until", {}, (prompt, {**settings, "until": [stop]}), 0)
    assert model.generate_until([until], disable_tqdm=True) == [direct[: direct.index(stop)]]


def test_refusals(tasks: Path) -> None:
    given = ("eval", "lm", "-m", demo_pair_path(), "--tasks", "tiny_choice")
    assert "is no folder" in one_line(ovspec(*given, "--include-path", "/nowhere"))
    assert "leave them out" in one_line(ovspec(*given, "--", "--model", "hf"))
