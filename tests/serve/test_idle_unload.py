"""`--idle-unload`: memory that is free while nobody asks, and the same answers afterwards."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import one_line, ovspec
from serve.conftest import Served, serving

FREE = "the model's memory is free"
LOADED = "keys and values"


def count(served: Served, text: str) -> int:
    return sum(text in line for line in served.lines)


def holds(served: Served, folder: Path) -> bool:
    """Whether the process has the model's weights in its memory."""
    return str(folder / "openvino_model.bin") in Path(f"/proc/{served.process.pid}/maps").read_text()


def wait_until_free(served: Served, folder: Path) -> None:
    served.wait_for(lambda: not holds(served, folder))
    served.wait_for(lambda: count(served, FREE) == count(served, LOADED))


def body(text: str = "Once upon a time") -> dict[str, object]:
    return {"prompt": text, "max_tokens": 8, "temperature": 0}


@pytest.fixture
def folder(demo_ir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_ir, tmp_path / "model"))


@pytest.mark.slow
def test_an_idle_server_has_no_model_and_answers_as_before(folder: Path) -> None:
    with serving(folder, "--idle-unload", "1") as served:
        first = served.post("/v1/completions", body())
        wait_until_free(served, folder)
        assert served.get("/health") and served.metric("vllm:num_requests_running") == 0
        assert served.post("/tokenize", {"prompt": "Once"})[0] == 200
        loads = count(served, LOADED)
        # All of them wait for the same load.
        with ThreadPoolExecutor(4) as pool:
            later = list(pool.map(lambda _: served.post("/v1/completions", body()), range(4)))
        texts = {answer["choices"][0]["text"] for _, answer in [first, *later]}
        assert len(texts) == 1 and {status for status, _ in later} == {200}
        assert count(served, LOADED) == loads + 1
        # A request keeps the model, however long it takes.
        long = {**body(), "max_tokens": 1500, "ignore_eos": True}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(served.post, "/v1/completions", long)
            served.wait_for(lambda: holds(served, folder))
            assert answer.result()[1]["usage"]["completion_tokens"] == 1500
        wait_until_free(served, folder)
        assert served.client().completions.create(model="model", **body()).choices[0].text in texts
        served.process.terminate()
        assert served.process.wait(30) == 0


@pytest.mark.slow
def test_a_client_that_goes_while_the_model_is_loaded_leaves_nothing_behind(folder: Path) -> None:
    with serving(folder, "--idle-unload", "0.5", "--request-timeout", "0.01") as served:
        wait_until_free(served, folder)
        assert served.post("/v1/completions", body())[0] == 504
        wait_until_free(served, folder)
        assert served.metric("vllm:num_requests_waiting") == 0


@pytest.mark.slow
def test_a_model_that_is_gone_fails_requests_until_it_is_back(folder: Path, tmp_path: Path) -> None:
    with serving(folder, "--idle-unload", "0.5") as served:
        expected = served.post("/v1/completions", body())[1]["choices"][0]["text"]
        wait_until_free(served, folder)
        (folder / "openvino_model.xml").rename(tmp_path / "away")
        assert served.post("/v1/completions", body())[0] == 500
        (tmp_path / "away").rename(folder / "openvino_model.xml")
        status, answer = served.post("/v1/completions", body())
        assert (status, answer["choices"][0]["text"]) == (200, expected)


def test_refusals(demo_ir: Path) -> None:
    for arguments in (["--idle-unload", "0"], ["--idle-unload", "5", "--ray"]):
        assert "--idle-unload" in one_line(ovspec("serve", "-m", demo_ir, *arguments))
