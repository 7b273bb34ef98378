"""Evaluations of the demo pair, and the command under test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from settings import F32

import ovspec
from ovspec.cli import main
from ovspec.eval import FidelityEval, Prompt, Report, Setting
from ovspec.modes.sparse_prefill import SparsePrefill
from ovspec.modes.verify_mode import VerifyMode, sparse_part

# By itself it would read all of these prompts, and so draft nothing.
_SMALL = {"sparse_self": ovspec.drafters.SparseSelf(ovspec.SparseVerify(budget=64))}


@pytest.fixture(scope="session")
def evaluate(demo_ir: Path) -> Callable[..., Report]:
    """Evaluate settings on the demo pair in f32. Pipelines of one graph are made once and set anew."""
    made: dict[tuple[bool, str | None, SparsePrefill | None], ovspec.LLMPipeline] = {}

    def run(
        texts: list[str],
        settings: list[VerifyMode],
        drafter: str | None = None,
        prefill: SparsePrefill | None = None,
        **options: Any,
    ) -> Report:
        def make_pipeline(verify: VerifyMode, drafts: bool, sparse_prompts: bool) -> ovspec.LLMPipeline:
            reading = prefill if sparse_prompts else None
            key = (sparse_part(verify) is not None, drafter if drafts else None, reading)
            if key not in made:
                assistant = ovspec.draft_model(demo_ir / "draft") if key[1] == "assistant" else None
                made[key] = ovspec.LLMPipeline(
                    demo_ir,
                    "CPU",
                    draft_model=assistant,
                    drafter=_SMALL.get(str(key[1]), key[1] or "none"),
                    verify=verify,
                    prefill=reading or "dense",
                    **F32,
                )
            made[key].verify = verify
            return made[key]

        if drafter is not None:
            options.setdefault("drafting", {"num_assistant_tokens": 4})
        evaluation = FidelityEval(
            model=demo_ir,
            make_pipeline=make_pipeline,
            prompts=[Prompt(line, text) for line, text in enumerate(texts, 1)],
            settings=[Setting(verify, prefill) for verify in settings],
            drafter=drafter,
            max_new_tokens=options.pop("max_new_tokens", 16),
            **options,
        )
        steps: list[str] = []
        report = evaluation.run(steps.append)
        assert len(steps) == evaluation.num_steps
        return report

    return run


@pytest.fixture
def eval_fidelity(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `ovspec eval fidelity` in this process, as the installed command does; the exit code."""

    def run(*arguments: str | Path) -> int:
        monkeypatch.setattr(sys, "argv", ["ovspec", "eval", "fidelity", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run
