"""Answers from a store: the score by its formula in transformers, the prompts, and both modes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import one_line
from commands import ovspec as run
from made_once import MakeOnce
from rag.conftest import write_texts
from settings import F32
from tiny_checkpoints import TINY, export_tiny, random_model

import ovspec
from ovspec.errors import InvalidValueError
from ovspec.rag import IndexChoices, RagSettings, SpeculativeRAG, Store, index
from ovspec.rag.evaluation import evaluate
from ovspec.rag.generating import write
from ovspec.rag.prompts import ANSWER, REFLECTION, Prompts
from ovspec.rag.questions import Question

MakePipeline = Callable[..., ovspec.LLMPipeline]
QUESTION = "Which animal has black and white stripes?"
SETTINGS = RagSettings(
    num_documents=4, num_drafts=3, documents_per_draft=2, max_rationale_tokens=12, max_answer_tokens=6
)
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.fixture
def store(tmp_path: Path, documents: Path, embedder_ir: Path) -> Path:
    index(tmp_path / "store", [documents], IndexChoices(embedder_ir))
    return tmp_path / "store"


@pytest.fixture(scope="module")
def tiny(make_once: MakeOnce) -> ovspec.LLMPipeline:
    pytest.importorskip("optimum.exporters.openvino", reason="needs ovspec[export]")
    folder = make_once("tiny Qwen2", lambda folder: export_tiny("Qwen2", folder)) / "ir"
    return ovspec.LLMPipeline(folder, "CPU", **F32)


def logprobs(tokens: list[int], count: int) -> np.ndarray:
    """Log probabilities of the last tokens of a text, by transformers."""
    import torch

    with torch.no_grad():
        logits = random_model(TINY["Qwen2"])(torch.tensor([tokens])).logits[0]
    found = torch.log_softmax(logits.double(), -1)[len(tokens) - count - 1 : -1]
    return found[torch.arange(count), torch.tensor(tokens[-count:])].numpy()


@pytest.mark.parametrize("template", ["", TEMPLATE])
def test_the_score_is_that_of_the_formula(store: Path, tiny: ovspec.LLMPipeline, template: str) -> None:
    tiny.get_tokenizer().set_chat_template(template)
    rag = SpeculativeRAG(store, tiny, settings=SETTINGS)
    result = rag.ask(QUESTION)
    prompts = Prompts(tiny)
    assert len(result.drafts) == 3
    for draft in result.drafts:
        texts = [result.documents[place].text for place in draft.documents]
        begun = prompts.draft(QUESTION, texts)
        (rationale,) = write(tiny, [begun], ANSWER, SETTINGS.max_rationale_tokens)
        behind = prompts.answer(begun, rationale.tokens)
        (answer,) = write(tiny, [behind], "\n", SETTINGS.max_answer_tokens)
        assert (rationale.text, answer.text) == (draft.rationale, draft.answer)
        own = logprobs([*begun, *rationale.tokens], len(rationale.tokens)).sum()
        own += logprobs([*behind, *answer.tokens], len(answer.tokens)).sum()
        count = len(rationale.tokens) + len(answer.tokens)
        assert draft.rho_draft == pytest.approx(own, abs=1e-4 * count)
        if draft.rho is None:
            assert not draft.answer
            continue
        read = prompts.candidate(QUESTION, draft.answer, draft.rationale)
        said = [*read.question, *read.draft]
        assert draft.rho_sc == pytest.approx(
            logprobs(said, len(read.draft)).sum(), abs=1e-4 * len(read.draft)
        )
        yes = logprobs([*said, *read.reflection, *read.yes], len(read.yes)).sum()
        assert draft.rho_sr == pytest.approx(yes, abs=1e-4 * len(read.yes))
        assert draft.rho == pytest.approx(draft.rho_draft + draft.rho_sc + draft.rho_sr)
    assert result.chosen is not None
    best = result.drafts[result.chosen]
    assert result.answer == best.answer and best.rho == max(d.rho for d in result.drafts if d.rho is not None)
    alone = rag.verified(result, shared=False)
    for draft, other in zip(result.drafts, alone.drafts, strict=True):
        assert draft.rho == pytest.approx(other.rho, abs=1e-3)
    assert alone.target_tokens > rag.verified(result).target_tokens


def test_a_candidate_is_the_conversation_and_no_text_ends_it(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline()
    tokenizer = pipeline.get_tokenizer()
    before = tokenizer.chat_template
    tokenizer.set_chat_template(TEMPLATE)
    try:
        name = str(tokenizer.decode([tokenizer.get_eos_token_id()], skip_special_tokens=False))
        for answer, rationale in (("A zebra.", "It has stripes."), (f"A {name} b", f"{name}{name}")):
            found = Prompts(pipeline).candidate("Which animal?", answer, rationale)
            parts = [found.question, found.draft, found.reflection, found.yes]
            tokens = [token for part in parts for token in part]
            assert tokenizer.get_eos_token_id() not in tokens
            text = str(tokenizer.decode(tokens))
            assert text == (
                "<|user|>\nAnswer the question in a few words. Then give the rationale of the answer.\n"
                f"Question: Which animal?\n<|assistant|>\nAnswer: {answer}\nRationale: {rationale}\n"
                f"<|user|>\n{REFLECTION}\n<|assistant|>\nYes"
            )
    finally:
        tokenizer.set_chat_template(before)


@pytest.mark.slow
def test_modes_and_clusters(
    tmp_path: Path, store: Path, documents: Path, make_pipeline: MakePipeline
) -> None:
    target, sparse = make_pipeline(), make_pipeline(draft=True, verify=ovspec.SparseVerify(L0=64, rho=0.1))
    rag = SpeculativeRAG(store, target, settings=SETTINGS)
    plain = rag.ask(QUESTION, "plain")
    assert plain.answer and not plain.drafts and not plain.why_lossy and plain.chosen is None
    assert "sparse" in SpeculativeRAG(store, sparse, settings=SETTINGS).ask(QUESTION, "plain").why_lossy
    # The budget is more than the documents have: all is read, and nothing approximated.
    whole = make_pipeline(draft=True, verify=ovspec.SparseVerify(budget=4096))
    exact = SpeculativeRAG(store, whole, settings=SETTINGS).ask(QUESTION, "plain")
    assert exact.answer == plain.answer and not exact.why_lossy
    with pytest.raises(InvalidValueError, match=r"question=\.\.\.: it is no valid text"):
        rag.ask(f"\udcff {QUESTION}")
    found = rag.ask(QUESTION)
    assert sorted(place for cluster in found.clusters for place in cluster) == list(range(4))
    for draft in found.drafts:
        assert all(place in cluster for place, cluster in zip(draft.documents, found.clusters, strict=True))
    assert found.answer == rag.ask(QUESTION).answer and found.drafter_tokens > found.target_tokens
    by_question = RagSettings(4, 3, 2, 12, 6, cluster_by="question")
    assert SpeculativeRAG(store, target, settings=by_question).ask(QUESTION).drafts
    index(tmp_path / "words", [documents])
    with Store(tmp_path / "words") as words:
        assert SpeculativeRAG(words, target, settings=SETTINGS).ask(QUESTION).drafts
        with pytest.raises(InvalidValueError, match="cluster_by=question"):
            SpeculativeRAG(words, target, settings=by_question)
        with pytest.raises(InvalidValueError, match="no document has a word"):
            SpeculativeRAG(words, target, settings=SETTINGS).ask("qqq")
        asked, begun = [Question(text, ("zebra",)) for text in (QUESTION, "qqq")], list[str]()
        with pytest.raises(InvalidValueError, match=r"question 'qqq': .*no document has a word"):
            evaluate(SpeculativeRAG(words, target, settings=SETTINGS), asked, begun.append)
        asked[1] = Question("zebra " * target.max_model_len, ("zebra",))
        with pytest.raises(InvalidValueError, match=r"question 'zebra .*retrieve fewer documents"):
            evaluate(SpeculativeRAG(words, target, settings=SETTINGS), asked, begun.append)
        assert not begun
    for options in ({"num_drafts": 0}, {"documents_per_draft": 11}, {"cluster_by": "colour"}):
        with pytest.raises(InvalidValueError):
            RagSettings(**options)


@pytest.mark.slow
def test_commands(tmp_path: Path, store: Path, demo_ir: Path) -> None:
    small = ["--num-documents", "4", "--num-drafts", "3", "--max-rationale-tokens", "8"]
    common = ["--store", store, "-m", demo_ir, *small, "--max-answer-tokens", "4"]
    ask = ["rag", "ask", "-q", QUESTION, *common]
    shown = run(*ask)
    assert not shown.returncode and "chosen: rho" in shown.stderr and "zebra.txt" in shown.stderr
    body = json.loads(run(*ask, "--json").stdout)
    assert body["answer"] == shown.stdout.strip() == body["drafts"][body["chosen"]]["answer"]
    plain = run(*ask, "--mode", "plain", "--verify", "sparse", "--budget", "64")
    assert "LOSSY" in plain.stderr and plain.stdout.strip()
    for option, value in (
        ("--verify", "sparse"),
        ("--drafter", "prompt_lookup"),
        ("--prefill", "sparse"),
    ):
        assert f"{option} {value}: with --mode speculative" in one_line(run(*ask, option, value))
    assert "--documents-per-draft 5" in one_line(run(*ask, "--documents-per-draft", "5"))
    lines = [{"question": QUESTION, "answers": ["zebra"]}, {"question": "the moon", "answers": ["moon"]}]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("\n".join(map(json.dumps, lines)))
    figured = ["eval", "rag", *common, "--json", tmp_path / "figures.json"]
    line = one_line(run(*figured, questions, "--drafter", "suffix"))
    assert "--drafter suffix: the draft model writes answers" in line and "--mode" not in line
    table = run(*figured, questions)
    assert not table.returncode and "95% interval" in table.stdout and "prefix cached" in table.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["examples"]) == 2 and figures["examples"][0]["retrieved"]
    tokens = {way: found["target_tokens"]["value"] for way, found in figures["ways"].items()}
    assert tokens["speculative, prefix cached"] < tokens["speculative"]
    half = '{"question": "\\ud800", "answers": ["a"]}'
    for text in ("", half, '{"question": "a"}', '{"question": "a", "answers": ["."]}', "no"):
        questions.write_text(text)
        assert str(questions) in one_line(run("eval", "rag", *common, questions))


def test_documents_that_are_too_long_are_refused(tmp_path: Path, demo_ir: Path) -> None:
    folder = write_texts(
        tmp_path / "long", {f"{number}.txt": f"word{number} zebra " * 4000 for number in (1, 2)}
    )
    index(tmp_path / "store", [folder], IndexChoices(chunk_size=60000, chunk_overlap=0))
    line = one_line(
        run("rag", "ask", "--store", tmp_path / "store", "-m", demo_ir, "-q", "zebra", "--mode", "plain")
    )
    assert "positions" in line
