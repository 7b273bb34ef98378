"""The page at / in a real browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve.browser import NAMES, Browser, browser_program
from serve.conftest import Served, serving

PROGRAM = browser_program()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"no browser: install one of {', '.join(NAMES)}")
DEVICES = {"desktop": (1280, 900, False), "phone": (375, 800, True)}
PROMPT = "Once upon a time, there was a little girl named Lily. She"


@pytest.fixture(params=DEVICES)
def browser(request: pytest.FixtureRequest, served: Served, tmp_path: Path) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path / "profile", served.url + "/", DEVICES[request.param]) as browser:
        browser.wait_for("document.getElementById('about')?.textContent.startsWith('demo')")
        yield browser
        keep(browser, f"{request.param}-{request.node.originalname}")
        # The page fits the screen, sends requests to its own server only, and has no errors.
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.requested and all(url.startswith((served.url, "data:")) for url in browser.requested)
        assert not browser.complaints


def keep(browser: Browser, name: str) -> None:
    """Save a picture where the environment variable asks for one."""
    if folder := os.environ.get("OVSPEC_TEST_SCREENSHOTS"):
        browser.screenshot(Path(folder) / f"{name}.png")


def send(browser: Browser, text: str) -> None:
    browser.run(
        f"document.getElementById('prompt').value = {text!r}; document.getElementById('send').click()"
    )
    browser.wait_for("!document.getElementById('send').disabled", 120)


def text(browser: Browser, name: str) -> str:
    return str(browser.run(f"document.getElementById('{name}').innerText"))


def test_a_chat_with_coloured_tokens(browser: Browser, served: Served) -> None:
    browser.run("document.getElementById('max-tokens').value = 40")
    browser.run("document.getElementById('draft-tokens').value = 4")
    send(browser, PROMPT)
    shown = browser.run("document.querySelector('.turn.assistant').textContent")
    expected = served.client().completions.create(model="demo", prompt=PROMPT, max_tokens=40, temperature=0)
    assert shown == expected.choices[0].text
    writers = browser.run(
        "[...document.querySelectorAll('.turn.assistant span')].map(span => span.className)"
    )
    assert {"draft", "target"} <= set(writers) <= {"draft", "target", "corrected"}
    colours = (
        "['draft', 'target'].map(k => getComputedStyle(document.querySelector('.turn span.' + k)).color)"
    )
    assert len(set(browser.run(colours))) == 2
    assert "40 tokens" in text(browser, "chat-figures") and "draft tokens accepted" in text(
        browser, "chat-figures"
    )
    assert browser.run("document.querySelectorAll('#acceptance rect').length") > 10
    assert (
        browser.run("document.querySelector('#density polyline').getAttribute('points').split(' ').length")
        > 3
    )
    # The second message carries the first one and its answer.
    send(browser, " The end.")
    assert browser.run("state.messages.length") == 4 and not text(browser, "error")


def test_plain_and_speculative_side_by_side(browser: Browser) -> None:
    browser.run("document.getElementById('tab-compare').click()")
    browser.run("document.getElementById('max-tokens').value = 32")
    browser.run("document.getElementById('draft-tokens').value = 4")
    send(browser, PROMPT)
    assert text(browser, "plain") == text(browser, "speculative") != ""
    assert text(browser, "verdict").startswith("The texts are the same. Speculative took")
    assert "accepted" in text(browser, "speculative-figures")
    assert "accepted" not in text(browser, "plain-figures")


def test_the_blocks_that_were_read(browser: Browser) -> None:
    browser.run("document.getElementById('max-tokens').value = 12")
    browser.run("document.getElementById('verify').value = 'sparse'")
    send(browser, " ".join([PROMPT] * 20))
    drawn = browser.run("[...document.querySelectorAll('#blocks rect')].map(r => +r.style.fillOpacity)")
    assert len(drawn) > 8 and drawn[0] == 1 and min(drawn) < 0.1  # the first block is always read
    assert f"of {len(drawn)} by some" in text(browser, "blocks-text")
    browser.run("document.getElementById('verify').value = 'dense'")
    send(browser, PROMPT)
    assert "whole context" in text(browser, "blocks-text")


def test_a_refusal_is_shown_and_the_message_kept(browser: Browser) -> None:
    browser.run("document.getElementById('temperature').value = 7")
    send(browser, PROMPT)
    assert "temperature=7" in text(browser, "error")
    assert browser.run("document.getElementById('prompt').value") == PROMPT
    assert browser.run("state.messages.length") == 0
    browser.events = [event for event in browser.events if event.get("method") != "Log.entryAdded"]


def test_stop_ends_the_request(browser: Browser, served: Served) -> None:
    browser.run("document.getElementById('max-tokens').value = 4000")
    browser.run(
        f"document.getElementById('prompt').value = {PROMPT!r}; document.getElementById('send').click()"
    )
    browser.wait_for("document.querySelectorAll('.turn.assistant span').length > 5")
    browser.run("document.getElementById('stop').click()")
    browser.wait_for("!document.getElementById('send').disabled")
    served.wait_for(lambda: served.metric("vllm:num_requests_running") == 0)
    assert browser.run("state.messages.length") == 2 and not text(browser, "error")


def test_a_server_with_a_key_asks_for_it(demo_ir: Path, tmp_path: Path) -> None:
    assert PROGRAM is not None
    with (
        serving(demo_ir, "--api-key", "secret") as served,
        Browser(PROGRAM, tmp_path / "profile", served.url + "/", DEVICES["phone"]) as browser,
    ):
        browser.wait_for("document.getElementById('key-row')?.hidden === false")
        browser.run(
            "document.getElementById('key').value = 'secret'; document.getElementById('key-set').click()"
        )
        browser.wait_for("document.getElementById('about').textContent.startsWith('demo_ir')")
        browser.run("document.getElementById('max-tokens').value = 8")
        send(browser, PROMPT)  # a model without a chat template continues the text
        assert browser.run("document.querySelector('.turn.assistant').textContent.length") > 5
