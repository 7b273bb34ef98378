"""`ovspec train-head`: what a head learns, where a training goes on, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import one_line
from commands import ovspec as command
from drafters.eagle3_models import BOUNDARIES, CONFIG, FC_NORMS, HIDDEN, VOCAB, Pair, Reference, pair
from drafters.test_eagle3 import answer, plain, settings_of, target
from safetensors.torch import load_file
from settings import F32

from ovspec.drafters.eagle3 import load_eagle3
from ovspec.engine.llm_engine import LLMEngine
from ovspec.operations.backends import Backends
from ovspec.train import train_head as module
from ovspec.train.eagle3_net import Eagle3Net
from ovspec.train.eagle3_training import TrainSettings
from ovspec.train.head_folder import HeadSizes
from ovspec.train.held_out import HeldOut
from ovspec.train.target_passes import TargetPasses, target_weights
from ovspec.train.target_states import KEPT_TOKENS, read_states, states_bytes
from ovspec.train.texts import Text, TrainingTexts
from ovspec.train.train_head import Needs, Report, TokensRead, train_head, training_folder
from ovspec_models import demo_pair_path
from ovspec_models.folder.head_info import HeadInfo

SIZES = HeadSizes(48, 96, BOUNDARIES)


def settings(**given: Any) -> TrainSettings:
    return TrainSettings(
        **{"epochs": 30, "batch_tokens": 128, "learning_rate": 3e-3, "ttt_length": 3, "seed": 1, **given}
    )


def texts() -> TrainingTexts:
    models = pair()
    ids = [models.greedy(prompt, 40) for prompt in models.prompts]
    return TrainingTexts([text_of(text) for text in ids], [text_of(text) for text in ids[:1]])


def text_of(ids: Sequence[int], prompt: int = 0) -> Text:
    return Text(np.array(ids, np.int64), prompt)


def train(out: Path, report: Any = lambda report: None, **given: Any) -> HeldOut:
    return train_head(pair().info, texts(), SIZES, settings(**given), out, F32, "fp32", report)


def accepted(draft: Path) -> int:
    """Draft tokens that the target accepts over all answers, which stay those of plain decoding."""
    models: Pair = pair()
    graph = Backends.resolve(draft, "CPU", F32, boundaries=(1,))
    drafter = load_eagle3(HeadInfo.read(draft), models.info, graph, 32)
    engine = LLMEngine(target("llama", BOUNDARIES), drafter, "dense", 32)
    total = 0
    for prompt, text in zip(models.prompts, plain("llama"), strict=True):
        (got,), (metrics,) = answer(engine, [prompt], settings_of())
        assert got == text
        total += sum(metrics.accepted_lengths)
    return total


def test_a_trained_head_drafts_better(tmp_path: Path) -> None:
    untrained = train(tmp_path / "untrained", learning_rate=1e-9, epochs=1)
    trained = train(tmp_path / "trained")
    assert trained.tokens_per_pass > 2 * untrained.tokens_per_pass
    assert accepted(tmp_path / "trained") > 2 * max(20, accepted(tmp_path / "untrained"))
    assert not training_folder(tmp_path / "trained").exists()


@pytest.mark.parametrize("prompt", [0, 1, 9])
def test_held_out_figures_are_those_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: int
) -> None:
    """On a text that the target wrote: at every place, the drafts that the paper's definition gets right."""
    models = pair()
    text = models.greedy(models.prompts[1][:2], 41)
    told = TrainingTexts([text_of(text, prompt)], [text_of(text[:-1], prompt)])
    trained = train_head(
        models.info, told, SIZES, settings(), tmp_path / "head", F32, "fp32", lambda report: None
    )
    arrays = load_file(tmp_path / "head" / "checkpoint" / "model.safetensors")
    config = json.loads((tmp_path / "head" / "checkpoint" / "config.json").read_text())
    monkeypatch.setattr("drafters.eagle3_models.THETA", config["rope_theta"])  # the target's
    reference = Reference(models.reference.embedding)
    reference.ids = arrays["d2t"] + torch.arange(len(arrays["d2t"]))
    reference.weights = {name: arrays[name] for name in (*reference.weights, *FC_NORMS)}
    states = models.states(text)
    begin = max(0, prompt - 1)
    places = range(begin, len(text) - 2)
    drafts = {place: reference.draft(text[: place + 2], states[: place + 1], 4) for place in places}
    right = [
        sum(draft[: depth + 1] == text[place + 2 : place + 3 + depth] for place, draft in drafts.items())
        for depth in range(4)
    ]
    assert right[1] > 0
    assert trained.right.tolist() == right
    assert trained.asked.tolist() == [count - begin for count in (41, 40, 39, 38)]


@pytest.mark.parametrize("steps", [1, 4])
def test_the_training_time_test_is_drafting(steps: int) -> None:
    """Row j of step k: what the paper's definition computes after k tokens of a draft that began there."""
    torch.manual_seed(0)
    embedding = torch.randn(VOCAB, HIDDEN)
    net = Eagle3Net(CONFIG, 3, embedding)
    reference = Reference(embedding)
    reference.weights = dict(net.named_parameters())
    tokens, states = torch.randint(0, VOCAB, (2, 12)), torch.randn(2, 12, 3 * HIDDEN)
    with torch.no_grad():
        net.fit_norms(states[0])
        entries = torch.arange(2, 11).repeat(2, 1)
        found = [net.lm_head(state) for state in net.unrolled(states, tokens, entries, steps)]
        for text, place in ((0, 2), (1, 5), (0, 7)):
            features = reference.features(states[text, : place + 1])
            for step in range(steps):
                own, logits = reference.forward(features, tokens[text, 1 : place + 2 + step])
                torch.testing.assert_close(found[step][text, place - 2], logits[-1], atol=1e-4, rtol=1e-4)
                features = torch.cat([features, own[-1:]])


def test_states_and_weights_are_the_targets() -> None:
    models = pair()
    text = texts().train[2].tokens
    ids = np.arange(0, VOCAB, 2)
    passes = TargetPasses(models.folder, BOUNDARIES, F32)
    (found,) = passes.read([text], ids)
    torch.testing.assert_close(
        torch.from_numpy(found.states), models.states(text.tolist()), atol=2e-4, rtol=1e-4
    )
    logits = models.model(torch.tensor([text.tolist()])).logits[0].detach()
    torch.testing.assert_close(torch.from_numpy(found.logits), logits[:, ::2], atol=2e-4, rtol=1e-4)
    assert found.best.tolist() == logits.argmax(-1).tolist()
    embedding, output = target_weights(models.folder)
    assert np.array_equal(embedding, models.model.get_input_embeddings().weight.detach().numpy())
    assert np.array_equal(output, models.model.get_output_embeddings().weight.detach().numpy())


def test_states_are_kept_on_disk(tmp_path: Path) -> None:
    """In f16, in units of each boundary's size; the likeliest tokens with their shares."""
    models, every = pair(), texts().train[:3]
    ids = np.arange(0, VOCAB, 2)
    passes = TargetPasses(models.folder, BOUNDARIES, F32)
    given = (tmp_path / "states", every, lambda: passes, ids, [HIDDEN] * len(BOUNDARIES))
    read: list[int] = []
    read_states(*given, read.append)
    assert read == [sum(map(len, every))]
    states = read_states(*given[:2], pytest.fail, *given[3:], read.append)  # nothing is left to read
    files = ("states", "likely", "shares", "best")
    assert states_bytes(every, len(ids), 3 * HIDDEN) == sum(
        (tmp_path / "states" / name).stat().st_size for name in files
    )
    for number, reading in enumerate(passes.read([text.tokens for text in every], ids)):
        known = states[number]
        np.testing.assert_allclose(known.states * states.sizes, reading.states, rtol=2e-3, atol=1e-4)
        assert known.best.tolist() == reading.best.tolist()
        likely = np.argsort(-reading.logits, -1)[:, :KEPT_TOKENS]
        assert [set(row) for row in known.likely.tolist()] == [set(row) for row in likely.tolist()]
        weights = np.exp(np.take_along_axis(reading.logits, known.likely, -1))
        np.testing.assert_allclose(
            known.shares, weights / weights.sum(-1, keepdims=True), rtol=2e-3, atol=1e-6
        )


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(ValueError, match=r"take 0\.0 GB, the disk has 0\.0 GB free; make room"):
        train(tmp_path / "out", epochs=1)


def test_a_disk_that_fills_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are mapped have all of their room before anything is written: else a signal ends the run."""
    done = tmp_path / "out.training" / "states"
    blocks: list[int] = []

    def interrupt(report: Report | Needs | TokensRead) -> None:
        if isinstance(report, TokensRead):
            blocks.extend(path.stat().st_blocks * 512 - path.stat().st_size for path in done.iterdir())
            raise KeyboardInterrupt

    monkeypatch.setattr("ovspec.train.target_states._SAVE_TEXTS", 1)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", interrupt, epochs=1)
    assert blocks and min(blocks) >= 0

    def full(*of: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ValueError, match=r"takes 0\.0 GB \(No space left on device\); make room"):
        train(tmp_path / "out", epochs=1)


@pytest.mark.slow
def test_a_broken_run_ends_as_an_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAVE_SECONDS", 0.0)
    train(tmp_path / "whole", epochs=8)
    seen: list[int] = []

    def interrupt(report: Report | Needs | TokensRead) -> None:
        if isinstance(report, Report):
            seen.append(report.step)
            if report.step >= report.steps // 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "broken", interrupt, epochs=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.training", "whole"]
    with pytest.raises(ValueError, match=r"its learning_rate is 0\.003, this one's 0\.001; give the same"):
        train(tmp_path / "broken", epochs=8, learning_rate=1e-3)
    told: list[Any] = []
    train(tmp_path / "broken", told.append, epochs=8)
    assert not any(isinstance(report, TokensRead) for report in told), "the target reads the texts once"
    first = next(report for report in told if isinstance(report, Report))
    assert 0 < first.step <= seen[-1]
    one, other = (
        load_file(tmp_path / name / "checkpoint" / "model.safetensors") for name in ("whole", "broken")
    )
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "whole"]


@pytest.mark.slow
def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    def interrupt(report: Report | Needs | TokensRead) -> None:
        if isinstance(report, Report):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", interrupt, epochs=1)
    work = training_folder(tmp_path / "out")
    torch.save({"step": 3}, work / "other.pt")
    for state in (b"no state", (work / "other.pt").read_bytes()):
        (work / "head.pt").write_bytes(state)
        with pytest.raises(ValueError, match=r"head\.pt is no state of this training; delete it"):
            train(tmp_path / "out", epochs=1)
    for name in ("progress.json", "likely", "states"):
        path = work / "states" / name
        path.write_bytes(b"{}")
        with pytest.raises(ValueError, match=rf"{name} is damaged.*; delete .*out\.training to begin anew"):
            train(tmp_path / "out", epochs=1)
        shutil.rmtree(work)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "out", interrupt, epochs=1)
    (work / "training.json").write_text("{")
    with pytest.raises(
        ValueError, match=r"training\.json: not valid JSON .*; delete .*out\.training to begin anew"
    ):
        train(tmp_path / "out", epochs=1)


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"learning_rate=1e\+18: the loss is no finite number at step \d+ of"
    ):
        train(tmp_path / "out", learning_rate=1e18)
    assert not (tmp_path / "out").exists()


def test_texts_in_tokens_of_another_model(tmp_path: Path) -> None:
    told = texts()
    told.held_out.append(text_of([1, 2, 3, VOCAB]))
    with pytest.raises(ValueError, match=rf"token {VOCAB}, the target's tokens are 0 to {VOCAB - 1}"):
        train_head(pair().info, told, SIZES, settings(), tmp_path / "out", F32, "fp32", lambda report: None)
    assert not list(tmp_path.iterdir())


def test_draft_vocabulary_and_batches() -> None:
    learnt = TrainingTexts([text_of([5, 5, 5, 7, 8, 8], prompt=3)], [])
    assert learnt.draft_vocabulary(2, 9).tolist() == [7, 8]
    assert learnt.train[0].entries.tolist() == [2, 3, 4]
    # A prompt that does not fit loses its first tokens; three tokens are too short.
    cut = {
        (12, 5, 4): [([5, 6, 7, 8], 0)],
        (8, 5, 6): [([2, 3, 4, 5, 6, 7], 3)],
        (8, 5, 9): [([*range(8)], 5)],
    }
    for (count, prompt, length), pieces in cut.items():
        found = text_of(range(count), prompt).pieces(length)
        assert [(piece.tokens.tolist(), piece.prompt) for piece in found] == pieces
    split = TrainingTexts.split([text_of([5, 5, 7, 7, 7, 1])] * 3 + [text_of([1])], 4, 0.25, seed=0)
    assert sum(map(len, split.train)) == 8  # the rest of two is too short to learn from
    # Whichever are too short: two that are not suffice.
    for seed in range(20):
        found = TrainingTexts.split([text_of([1])] * 8 + [text_of(range(6))] * 2, 8, 0.1, seed)
        assert len(found.train) == len(found.held_out) == 1
    assert split.draft_vocabulary(2, 9).tolist() == [5, 7]
    many = TrainingTexts([text_of(range(4 + n % 7)) for n in range(50)], [text_of(range(4))])
    batches = many.batches(32, seed=0, epoch=1)
    assert sorted(number for batch in batches for number in batch) == [*range(50)]
    assert all(len(batch) * max(len(many.train[n]) for n in batch) <= 32 for batch in batches)
    assert [len(batch) for batch in batches] != [len(batch) for batch in many.batches(32, seed=0, epoch=2)]


def test_agreement_is_counted_as_decoding_does() -> None:
    found = HeldOut.of(2)
    found.add(np.array([[True, True], [False, True], [True, False], [True, True], [False, False]]))
    # From place 0: two drafts and the target's token; from place 3: one draft, and the text ends.
    assert (found.tokens, found.passes) == (5, 2)
    assert found.acceptance == [3 / 5, 2 / 4]


def test_the_command(tmp_path: Path) -> None:
    """On the demo target: the folder opens as a draft, and `info` knows it."""
    story = "Once upon a time there were {} bears, who lived in a wood."
    lines = [json.dumps({"text": story.format(n)}) for n in range(4)]
    lines += [json.dumps({"prompt": "Once upon", "completion": story.format(n)[9:]}) for n in range(4, 8)]
    data, out = tmp_path / "texts.jsonl", tmp_path / "head"
    data.write_text("\n".join(lines))
    common = ("train-head", "--target", demo_pair_path(), "--data", data, "--epochs", 1)
    done = command(*common, "--output", out, "--draft-vocab-size", 64, "--held-out", 0.2, "--json")
    assert done.returncode == 0, done.stderr
    assert "GB of memory, and 0.0 GB of the disk in" in done.stderr and "the target has read" in done.stderr
    figures = json.loads(done.stdout)
    assert (
        figures["reports"][-1]["step"] == figures["reports"][-1]["steps"] and figures["tokens_per_pass"] >= 1
    )
    assert json.loads(command("info", out, "--json").stdout)["head"]["kind"] == "eagle3"
    told = command(
        "generate", "-m", demo_pair_path(), "--draft-model", out, "-p", "Once", "--max-new-tokens", 4
    )
    assert told.returncode == 0, told.stderr
    again = one_line(command(*common, "--output", out))
    assert "is not empty; give a new folder" in again


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--boundaries", "1,x"), "expected whole numbers separated by commas"),
        (("--boundaries", "1,9"), "--boundaries 9: the target has 6 layers"),
        (("--data", "missing.jsonl"), "missing.jsonl: No such file"),
        (("--target", "missing"), "missing"),
        (("--kind", "medusa"), "medusa"),
        (("--draft-vocab-size", 5000), "--draft-vocab-size 5000: the target has 4096 tokens"),
        ((), "1 texts, of which 1 are long enough; give two or more"),
        (("--data", "two.jsonl", "--held-out", 0.9), "--held-out 0.9: it leaves none of 2 texts"),
        (("--seed", -1), "-1 is not in the range x>=0"),
        (("--data", "half.jsonl"), "half.jsonl: line 1 holds no text"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "Once upon a time there were three bears."}')
    (tmp_path / "half.jsonl").write_text('{"completion": "of what?"}')
    (tmp_path / "two.jsonl").write_text(2 * (data.read_text() + "\n"))
    monkeypatch.chdir(tmp_path)
    words = ["--target", demo_pair_path(), "--data", data, "--output", tmp_path / "out", *options]
    assert said in one_line(command("train-head", *words))
    assert not (tmp_path / "out").exists()
