"""The page at / sends pictures that were chosen or pasted, and keeps them in its chats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pictures.test_server import data_url
from serve.browser import NAMES, Browser, browser_program
from serve.conftest import Served, serving
from serve.test_page import fill, press, send, stored, text, turns, wait
from tiny_pictures import PICTURES, shapes

PROGRAM = browser_program()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"no browser: install one of {', '.join(NAMES)}")


@pytest.fixture(scope="module")
def served(visual_family: Callable[[str], Path]) -> Iterator[Served]:
    with serving(visual_family("Qwen2.5-VL"), "--drafter", "none", "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture
def browser(served: Served, tmp_path: Path) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path / "profile", served.url + "/", (1280, 900, False)) as browser:
        browser.wait_for("document.getElementById('about')?.textContent.startsWith('tiny')")
        fill(browser, "longest", "8")
        yield browser
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
        assert not browser.complaints


def give(browser: Browser, url: str, name: str, pasted: bool) -> None:
    """Choose a file, or paste it."""
    browser.run(
        f"(async () => {{ const blob = await (await fetch({json.dumps(url)})).blob();"
        "const given = new DataTransfer();"
        f"given.items.add(new File([blob], {name!r}, {{ type: blob.type }}));"
        + (
            "document.getElementById('prompt').dispatchEvent(new ClipboardEvent('paste',"
            "{ clipboardData: given, bubbles: true, cancelable: true }));"
            if pasted
            else "const field = document.getElementById('picture-file'); field.files = given.files;"
            "field.dispatchEvent(new Event('change'));"
        )
        + "})()"
    )


def waiting(browser: Browser) -> int:
    return int(browser.run("document.querySelectorAll('#pictures img').length"))


@pytest.mark.parametrize("pasted", [False, True], ids=["chosen", "pasted"])
def test_a_picture_is_sent_shown_and_kept(browser: Browser, served: Served, pasted: bool) -> None:
    url = data_url(PICTURES[0])
    assert not browser.run("document.getElementById('add-picture').hidden")
    give(browser, url, "shapes.png", pasted)
    browser.wait_for("document.querySelectorAll('#pictures img').length === 1")
    send(browser, "What is it?")
    assert not text(browser, "error") and waiting(browser) == 0
    assert browser.run("document.querySelector('.turn.user img').src") == url
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8}
    _, expected = served.post("/v1/chat/completions", body)
    words = stored(browser)[0]["messages"][1]["content"]
    assert words == expected["choices"][0]["message"]["content"]
    assert stored(browser)[0]["messages"][0]["pictures"] == [url]
    # An edited message has its pictures again.
    press(browser, "Edit")
    assert waiting(browser) == 1
    press(browser, "send")
    wait(browser)
    assert len(turns(browser)) == 2 and stored(browser)[0]["messages"][0]["pictures"] == [url]


def test_what_is_no_picture_is_said(browser: Browser) -> None:
    give(browser, "data:image/png;base64,AAAA", "broken.png", False)
    browser.wait_for("document.getElementById('error').textContent")
    assert "broken.png is no picture that this browser shows" in text(browser, "error")
    assert waiting(browser) == 0


def test_large_pictures_are_drawn_smaller(browser: Browser) -> None:
    give(browser, data_url(shapes(3072, 100, 1)), "wide.png", False)
    browser.wait_for("document.querySelector('#pictures img')?.naturalWidth === 1536")
    browser.run("document.querySelector('#pictures button').click()")
    assert waiting(browser) == 0
