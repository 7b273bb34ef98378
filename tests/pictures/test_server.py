"""A server answers about pictures in messages as the pipeline does, and refuses others with 400."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openvino_genai import ChatHistory
from PIL import Image
from serve.conftest import TEMPLATE, Served, serving
from settings import F32
from tiny_pictures import PICTURES, without_pixels

import ovspec

pytestmark = pytest.mark.slow
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def folder(visual_family: Callable[[str], Path]) -> Path:
    return visual_family("Qwen2.5-VL")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("allowed")
    PICTURES[1].save(root / "tall one.png")
    (root.parent / "other.png").write_bytes((root / "tall one.png").read_bytes())
    (root / "link.png").symlink_to(root.parent / "other.png")
    (root / "circle.png").symlink_to(root / "circle.png")
    return root


@pytest.fixture(scope="module")
def served(folder: Path, files: Path) -> Iterator[Served]:
    with serving(folder, "--drafter", "none", "--allowed-local-media-path", files) as server:
        yield server


def data_url(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def chat(served: Served, content: Any) -> tuple[int, dict[str, Any]]:
    messages = [{"role": "user", "content": content}]
    body = {"messages": messages, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    return served.post("/v1/chat/completions", body)


def test_answers_are_those_of_the_pipeline(served: Served, folder: Path, files: Path) -> None:
    pipeline = ovspec.VLMPipeline(folder, "CPU", drafter="none", **F32)
    urls = [data_url(PICTURES[0]), f"file://{files}/tall%20one.png"]
    content = [part(urls[0]), {"type": "text", "text": "or"}, part(urls[1]), {"type": "text", "text": "?"}]
    status, found = chat(served, content)
    assert status == 200, found
    history = ChatHistory([{"role": "user", "content": "<ov_genai_image_0>or<ov_genai_image_1>?"}])
    expected = pipeline.generate(history, PICTURES[:2], max_new_tokens=NEW_TOKENS, ignore_eos=True)
    assert found["choices"][0]["message"]["content"] == expected.texts[0]
    assert found["usage"]["prompt_tokens"] == expected.perf_metrics.get_num_input_tokens()
    assert chat(served, "or?")[1]["choices"][0]["message"]["content"] != expected.texts[0]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.org/cat.png", "an address that begins with 'https://example.' is not fetched"),
        ("data:image/png;base64,AAAA", "is no picture that can be read (of no known format)"),
        (
            f"data:image/gif;base64,{base64.b64encode(without_pixels('GIF')).decode()}",
            "has no pixels (0 x 0)",
        ),
        ("data:image/png;base64,???", "is no base64"),
        ("data:image/png,AAAA", "expected data:image/...;base64,..."),
        ("file:///etc/passwd", "is no file of the folder that this server may read"),
        ("file://{files}/../other.png", "is no file of the folder that this server may read"),
        ("file://{files}/link.png", "is no file of the folder that this server may read"),
        ("file://{files}/circle.png", "is no file of the folder that this server may read"),
        ("file://example.org/{files}/tall one.png", "is no file of the folder that this server may read"),
        ("file://[", "is no file of the folder that this server may read"),
        ("file://{files}/a%00b", "is no file of the folder that this server may read"),
        (f"file://{{files}}/{'a' * 5000}", "is no file of the folder that this server may read"),
        ("cat.png", "is not fetched"),
    ],
)
def test_what_is_no_picture_of_ours_is_refused(served: Served, files: Path, url: str, message: str) -> None:
    status, found = chat(served, [part(url.format(files=files)), {"type": "text", "text": "?"}])
    assert status == 400
    assert message in found["error"]["message"]
    assert "\n" not in found["error"]["message"]


def test_pictures_behind_the_last_position_are_not_read(served: Served) -> None:
    picture = part(data_url(PICTURES[0]))
    one, two = (chat(served, [picture] * count)[1]["usage"]["prompt_tokens"] for count in (1, 2))
    limit = json.loads(served.get("/v1/models"))["data"][0]["max_model_len"]
    content = [picture] * (limit // (two - one - 2) + 1) + [part("data:image/png;base64,AAAA")]
    status, found = chat(served, content)
    assert status == 400
    assert f"this model's maximum context length is {limit}" in found["error"]["message"]


def test_texts_do_not_wait_while_a_large_picture_is_read(served: Served, files: Path) -> None:
    Image.new("L", (100_000, 450)).save(files / "large.png")
    with ThreadPoolExecutor(1) as pool:
        about_it = pool.submit(chat, served, [part(f"file://{files}/large.png")])
        time.sleep(0.1)
        assert chat(served, "?")[0] == 200
        assert not about_it.done()
        status, found = about_it.result()
    assert status == 400 and "one side may be 200 times the other" in found["error"]["message"]


def test_pictures_of_others_than_users_are_refused(served: Served) -> None:
    system = {"role": "system", "content": [part(data_url(PICTURES[2]))]}
    messages = [system, {"role": "user", "content": "?"}]
    status, found = served.post("/v1/chat/completions", {"messages": messages})
    assert status == 400
    assert "a message of role system has pictures" in found["error"]["message"]


def test_responses_see_what_chats_see(served: Served) -> None:
    """As the official client sends pictures, between texts and in an earlier turn too."""
    url = data_url(PICTURES[0])
    client, options = served.client(), {"model": "ir", "temperature": 0, "max_output_tokens": NEW_TOKENS}
    content = [
        {"type": "input_image", "image_url": url, "detail": "auto"},
        {"type": "input_text", "text": "What is it?"},
    ]
    first = [{"role": "user", "content": content}]
    answer = client.responses.create(input=first, extra_body={"ignore_eos": True}, **options)
    status, found = chat(served, [part(url), {"type": "text", "text": "What is it?"}])
    assert status == 200 and answer.output_text == found["choices"][0]["message"]["content"]
    assert answer.usage.input_tokens == found["usage"]["prompt_tokens"] > 20
    later = [*first, {"role": "assistant", "content": "A dog."}, {"role": "user", "content": "And?"}]
    again = client.responses.create(input=later, **options)
    alone = client.responses.create(input=later[1:], **options)
    assert again.usage.input_tokens - alone.usage.input_tokens > 20


@pytest.mark.parametrize(
    ("role", "url", "message"),
    [
        ("user", "https://example.org/cat.png", "is not fetched"),
        ("user", "data:image/png;base64,AAAA", "input: picture: is no picture that can be read"),
        ("system", "", "a message of role system has pictures"),
    ],
)
def test_pictures_that_responses_refuse(served: Served, role: str, url: str, message: str) -> None:
    picture = {"type": "input_image", "image_url": url or data_url(PICTURES[2])}
    status, found = served.post("/v1/responses", {"input": [{"role": role, "content": [picture]}]})
    assert status == 400
    assert message in found["error"]["message"] and found["error"]["param"] == "input"


def test_a_text_model_refuses_pictures(demo_ir: Path, tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.write_text(TEMPLATE)
    with serving(demo_ir, "--drafter", "none", "--chat-template", template) as server:
        content = [{"type": "input_image", "image_url": data_url(PICTURES[2])}]
        refused = [
            chat(server, [part(data_url(PICTURES[2]))]),
            server.post("/v1/responses", {"input": [{"role": "user", "content": content}]}),
        ]
    for status, found in refused:
        assert status == 400
        assert "reads no pictures; send text alone" in found["error"]["message"]
