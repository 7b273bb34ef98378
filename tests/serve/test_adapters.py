"""Adapters of a server: requests name them as their model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from adapter_files import random_adapter, random_matrices, write_adapter
from commands import one_line, ovspec
from prompts import STORY
from serve.conftest import serving

from ovspec.serve.output.answer_schemas import ModelList
from ovspec_models import demo_pair_path

NAMES = ("demo", "one", "two", None)


@pytest.mark.slow
def test_requests_name_adapters_as_models(demo_ir: Path, template: Path, tmp_path: Path) -> None:
    """All at once as each alone, in every interface; a stream says who answers."""
    files = [random_adapter(tmp_path / f"{seed}.safetensors", demo_ir, 4, seed, 3.0) for seed in (1, 2)]
    named = [
        word for name, file in zip(NAMES[1:3], files, strict=True) for word in ("--adapter", f"{name}={file}")
    ]
    with serving(demo_ir, "--chat-template", template, "--served-model-name", "demo", *named) as server:
        client = server.client()

        def answer(name: str | None) -> dict[str, Any]:
            body = {"prompt": STORY, "max_tokens": 16, "temperature": 0, **({"model": name} if name else {})}
            status, found = server.post("/v1/completions", body)
            assert status == 200, found
            return found

        alone = [answer(name) for name in NAMES]
        assert [of["model"] for of in alone] == ["demo", "one", "two", "demo"]
        texts = [of["choices"][0]["text"] for of in alone]
        assert texts[0] == texts[3] and len(set(texts)) == 3
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(answer, NAMES))
        assert [of["choices"][0]["text"] for of in together] == texts
        events = list(
            client.completions.create(model="one", prompt=STORY, max_tokens=16, temperature=0, stream=True)
        )
        assert {event.model for event in events} == {"one"}
        assert "".join(event.choices[0].text for event in events if event.choices) == texts[1]
        chats, items = list[str](), list[str]()
        for name in NAMES[:2]:
            asked = [{"role": "user", "content": STORY}]
            chat = client.chat.completions.create(model=name, messages=asked, max_tokens=16, temperature=0)
            item = client.responses.create(model=name, input=STORY, max_output_tokens=16, temperature=0)
            assert chat.model == item.model == name
            chats.append(chat.choices[0].message.content)
            items.append(item.output_text)
        assert chats == items and chats[0] != chats[1]
        ModelList.model_validate_json(server.get("/v1/models"))
        listed = {model.id: model.to_dict() for model in client.models.list()}
        assert list(listed) == ["demo", "one", "two"]
        assert (listed["two"]["parent"], listed["two"]["root"]) == ("demo", str(files[1]))
        assert client.models.retrieve("one").id == "one"
        status, refused = server.post("/v1/completions", {"model": "three", "prompt": "Once"})
        assert status == 404 and "this server has 'demo', 'one', 'two'" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ("one", "--adapter one: expected NAME=FILE"),
        ("demo={}", "demo is served already; give another name"),
        ("one=/nowhere", "/nowhere: No such file or directory; give the file of a LoRA adapter"),
        ("one={}", "the model has no linear layer 'base_model.model.layers.77.up_proj' that adapters add to"),
    ],
)
def test_what_a_server_refuses_at_its_start(tmp_path: Path, adapter: str, message: str) -> None:
    file = write_adapter(tmp_path / "a.safetensors", random_matrices({"layers.77.up_proj": (8, 8)}))
    options = ("--served-model-name", "demo", "--port", "0", "--adapter", adapter.format(file))
    refused = ovspec("serve", "-m", demo_pair_path(), *options)
    assert refused.returncode == 2 and message in one_line(refused)
