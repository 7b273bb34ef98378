"""The page at / in a real browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve.browser import NAMES, Browser, browser_program
from serve.conftest import Served, serving

PROGRAM = browser_program()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"no browser: install one of {', '.join(NAMES)}")
DEVICES = {"desktop": (1280, 900, False), "phone": (390, 800, True)}
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


def fill(browser: Browser, name: str, value: object) -> None:
    """Enter a value in a field, as a person does: the page hears of it."""
    what = "checked" if isinstance(value, bool) else "value"
    browser.run(
        f"(f => {{ f.{what} = {json.dumps(value)}; f.dispatchEvent(new Event('input')); "
        f"f.dispatchEvent(new Event('change')) }})(document.getElementById('{name}'))"
    )


def press(browser: Browser, name: str) -> None:
    """Press a button by its id, or the last one with its words."""
    browser.run(
        f"(document.getElementById({name!r}) || "
        f"[...document.querySelectorAll('button')].findLast(b => b.textContent === {name!r})).click()"
    )


def wait(browser: Browser) -> None:
    """Until no answer is written."""
    browser.wait_for("!document.getElementById('send').hidden", 120)


def send(browser: Browser, text: str) -> None:
    fill(browser, "prompt", text)
    press(browser, "send")
    wait(browser)


def text(browser: Browser, name: str) -> str:
    return str(browser.run(f"document.getElementById('{name}').innerText"))


def turns(browser: Browser, kind: str = "") -> list[str]:
    """The words of the messages."""
    shown: list[str] = browser.run(
        f"[...document.querySelectorAll('.turn{kind} > :nth-child(2)')].map(w => w.textContent)"
    )
    return shown


def stored(browser: Browser) -> list[dict[str, Any]]:
    """The chats that the browser keeps."""
    chats: list[dict[str, Any]] = json.loads(browser.run("localStorage.getItem('ovspec-chats') || '[]'"))
    return chats


def test_a_chat_and_how_it_was_written(browser: Browser, served: Served) -> None:
    for name, value in {"longest": "40", "draft-tokens": "4", "shown": True}.items():
        fill(browser, name, value)
    send(browser, PROMPT)
    expected = served.client().completions.create(model="demo", prompt=PROMPT, max_tokens=40, temperature=0)
    assert turns(browser, ".assistant") == [expected.choices[0].text]
    writers = browser.run(
        "[...document.querySelectorAll('.turn.assistant .written span')].map(span => span.className)"
    )
    assert {"draft", "target"} <= set(writers) <= {"draft", "target", "corrected"}
    colours = (
        "['draft', 'target'].map(k => getComputedStyle(document.querySelector('.turn span.' + k)).color)"
    )
    assert len(set(browser.run(colours))) == 2
    figures = browser.run("document.querySelector('.turn.assistant .figures').textContent")
    assert "40 tokens" in figures and "draft tokens accepted" in figures
    assert browser.run("document.querySelectorAll('#steps rect').length") > 10
    # Axes have numbers.
    assert "step 1" in browser.run("document.getElementById('steps').textContent")
    assert "100%" in browser.run("document.getElementById('share').textContent")
    assert "reached the longest answer" in browser.run("document.querySelector('.note').textContent")
    # The second message carries the first one and its answer.
    send(browser, " The end.")
    assert len(turns(browser)) == 4 and not text(browser, "error")
    # The newest words are in view, above the box.
    assert browser.run(
        "document.querySelector('.turn:last-child').getBoundingClientRect().bottom "
        "<= document.getElementById('composer').getBoundingClientRect().top"
    )
    assert browser.run("document.getElementById('prompt').getBoundingClientRect().bottom <= innerHeight")


def test_messages_are_edited_and_answered_again_and_kept(browser: Browser, served: Served) -> None:
    fill(browser, "longest", "12")
    send(browser, PROMPT)
    first = turns(browser)
    press(browser, "Answer again")
    wait(browser)
    assert turns(browser) == first  # greedy
    press(browser, "Edit")
    assert browser.run("document.getElementById('prompt').value") == PROMPT
    send(browser, "The old man opened the door and")
    edited = turns(browser)
    assert len(edited) == 2 and edited[0] == "The old man opened the door and" and edited != first
    # It is there when the page is opened again, and "Forget" forgets it.
    browser.call("Page.navigate", url=served.url + "/")
    browser.wait_for("document.querySelectorAll('#chat-list li').length === 1")
    press(browser, edited[0])
    assert turns(browser) == edited
    press(browser, "Forget")
    assert turns(browser) == [] == stored(browser)
    assert not browser.run("document.querySelectorAll('#chat-list li').length")


def test_chats_do_not_change_one_another(browser: Browser) -> None:
    fill(browser, "longest", "8")
    send(browser, PROMPT)
    first = turns(browser)
    # Leave a second one before its answer begins.
    press(browser, "new-chat")
    fill(browser, "prompt", "The old man")
    browser.run(
        "document.getElementById('send').click(); document.querySelector('#chat-list button').click()"
    )
    wait(browser)
    kept = stored(browser)[0]["messages"]
    assert turns(browser) == first == [message["content"].strip() for message in kept]
    assert browser.run("document.getElementById('prompt').value") == "The old man"
    # Another tab keeps one.
    chats = json.dumps([{"id": "other", "title": "Other", "messages": [{"role": "user", "content": "Hi"}]}])
    browser.run(
        f"localStorage.setItem('ovspec-chats', {json.dumps(chats)}); "
        "dispatchEvent(new StorageEvent('storage', {key: 'ovspec-chats'}))"
    )
    send(browser, "The old man")
    assert [chat["title"] for chat in stored(browser)] == [PROMPT[:60], "Other"]


def test_a_browser_that_keeps_nothing(browser: Browser, served: Served) -> None:
    refused = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('not allowed'); }})"
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=refused)
    browser.call("Page.navigate", url=served.url + "/")
    browser.wait_for("document.getElementById('about')?.textContent.startsWith('demo')")
    fill(browser, "longest", "8")
    send(browser, PROMPT)
    assert len(turns(browser)) == 2 and "no room left for chats" in text(browser, "error")


def test_a_chat_is_forgotten_while_it_is_written(browser: Browser) -> None:
    fill(browser, "longest", "4000")
    fill(browser, "prompt", PROMPT)
    press(browser, "send")
    browser.wait_for("document.querySelector('.turn.assistant .words')?.textContent.length > 20")
    press(browser, "forget-all")
    press(browser, "forget-all")
    wait(browser)
    assert turns(browser) == [] == stored(browser)
    assert not browser.run("document.querySelectorAll('#chat-list li').length")


def test_plain_and_speculative_side_by_side(browser: Browser) -> None:
    for name, value in {"longest": "32", "draft-tokens": "4", "shown": True}.items():
        fill(browser, name, value)
    press(browser, "tab-compare")
    assert browser.run("document.getElementById('chat').hidden")
    send(browser, PROMPT)
    assert text(browser, "plain") == text(browser, "speculative") != ""
    assert text(browser, "verdict").startswith("The texts are the same. Behind the first token: plain")
    assert "accepted" in text(browser, "speculative-figures")
    assert "accepted" not in text(browser, "plain-figures")


def test_the_blocks_that_were_read(browser: Browser) -> None:
    for name, value in {"longest": "12", "shown": True, "verify": "sparse"}.items():
        fill(browser, name, value)
    send(browser, " ".join([PROMPT] * 20))
    drawn = browser.run("[...document.querySelectorAll('#blocks rect')].map(r => +r.style.fillOpacity)")
    assert len(drawn) > 8 and drawn[0] == 1 and min(drawn) < 0.1  # the first block is always read
    assert f"of {len(drawn)} by some" in text(browser, "blocks-text")
    fill(browser, "verify", "dense")
    send(browser, PROMPT)
    assert "whole context" in text(browser, "blocks-text")


def test_a_refusal_is_in_words_of_the_page_and_the_message_kept(browser: Browser) -> None:
    fill(browser, "temperature", "7")
    send(browser, PROMPT)
    assert "Randomness (temperature), 0 to 2: 7; enter a number from 0 to 2" in text(browser, "error")
    assert browser.run("document.getElementById('prompt').value") == PROMPT
    assert turns(browser) == [] == stored(browser)
    assert not browser.run("document.querySelectorAll('#chat-list li').length")


@pytest.mark.parametrize(
    ("field", "value", "begin"),
    [
        ("longest", "9000", "Longest answer, tokens: "),
        ("prompt", "word " * 9000, "Message: "),
    ],
)
def test_what_the_server_refuses_is_in_words_of_the_page(
    browser: Browser, field: str, value: str, begin: str
) -> None:
    fill(browser, field, value)
    send(browser, value if field == "prompt" else PROMPT)
    assert text(browser, "error").startswith(begin)
    assert browser.run("document.activeElement.id") == field
    assert browser.run("document.getElementById('settings').hidden") == (field == "prompt")
    # The browser's own note of the status is no fault of the page.
    assert all("400 (Bad Request)" in complaint for complaint in browser.complaints)
    browser.events = [event for event in browser.events if event.get("method") != "Log.entryAdded"]


def test_forgetting_all_leaves_nothing(browser: Browser, served: Served) -> None:
    for name, value in {"longest": "8", "draft-tokens": "4", "shown": True, "system": "Be secret."}.items():
        fill(browser, name, value)
    press(browser, "tab-compare")
    send(browser, PROMPT)
    assert text(browser, "plain") and text(browser, "speculative") and text(browser, "verdict")
    assert "Be secret." in browser.run("JSON.stringify({...localStorage})")
    press(browser, "forget-all")
    press(browser, "forget-all")
    for name in ("plain", "speculative", "plain-figures", "speculative-figures", "verdict"):
        assert not text(browser, name)
    fields = browser.run("['system', 'prompt', 'longest'].map(id => document.getElementById(id).value)")
    assert fields == ["", "", "8"]
    kept = browser.run("JSON.stringify({...localStorage})")
    assert "secret" not in kept and "Lily" not in kept
    browser.call("Page.navigate", url=served.url + "/")
    browser.wait_for("document.getElementById('longest')?.value === '8'")
    assert browser.run("document.getElementById('system').value") == ""


def test_stop_ends_the_request_and_the_answer_can_go_on(browser: Browser, served: Served) -> None:
    fill(browser, "longest", "4000")
    fill(browser, "prompt", PROMPT)
    press(browser, "send")
    browser.wait_for("document.querySelector('.turn.assistant .words')?.textContent.length > 20")
    press(browser, "stop")
    wait(browser)
    served.wait_for(lambda: served.metric("vllm:num_requests_running") == 0)
    assert len(turns(browser)) == 2 and not text(browser, "error")
    assert "You stopped" in browser.run("document.querySelector('.note').textContent")
    stopped = turns(browser)[1]
    fill(browser, "longest", "8")
    press(browser, "Go on")
    wait(browser)
    assert turns(browser)[1].startswith(stopped) and len(turns(browser)[1]) > len(stopped)
    assert len(turns(browser)) == 2


def test_input_methods_keep_their_enter(browser: Browser) -> None:
    fill(browser, "prompt", "こんにち")
    key = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, cancelable: true})"
    assert browser.run(f"document.getElementById('prompt').dispatchEvent({key})")  # nobody took it
    assert turns(browser) == []


def test_markdown_is_shown_and_never_run(browser: Browser) -> None:
    source = (
        "# Title\n\nSome **bold** and `code` <img src=x onerror=alert(1)> [bad](javascript:alert(1)) "
        "[good](https://example.org/)\n\n1. one\n   - inner\n2. two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "```python\nprint('<b>')\n"
    )
    shown = browser.run(
        "import('./page/markdown.js').then(m => { const d = document.createElement('div'); "
        f"d.append(m.render({json.dumps(source)})); return d.innerHTML; }})"
    )
    for part in (
        "<h3>Title</h3>",
        "<strong>bold</strong>",
        "<code>code</code>",
        "&lt;img src=x",
        "[bad](javascript:alert(1))",
        '<a href="https://example.org/" target="_blank" rel="noopener noreferrer">good</a>',
        '<ol start="1"><li>one<ul><li>inner</li></ul></li><li>two</li></ol>',
        "<td>2</td>",
        "<code>print('&lt;b&gt;')",
    ):
        assert part in shown, shown


def test_a_server_with_a_key_asks_for_it(demo_ir: Path, tmp_path: Path) -> None:
    assert PROGRAM is not None
    with (
        serving(demo_ir, "--api-key", "secret") as served,
        Browser(PROGRAM, tmp_path / "profile", served.url + "/", DEVICES["phone"]) as browser,
    ):
        browser.wait_for("document.getElementById('key-row')?.hidden === false")
        fill(browser, "prompt", PROMPT)
        press(browser, "send")
        browser.wait_for("document.getElementById('error').innerText.includes('API key')")
        assert browser.run("document.getElementById('prompt').value") == PROMPT
        fill(browser, "key", "secret")
        press(browser, "key-set")
        browser.wait_for("document.getElementById('about').textContent.startsWith('demo_ir')")
        fill(browser, "longest", "8")
        send(browser, PROMPT)  # a model without a chat template continues the text
        assert len(turns(browser, ".assistant")[0]) > 5
