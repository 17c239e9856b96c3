"""A decision in a reader's words: the gain, each check once, and none without data as good."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.approvals import evaluation_of
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.evaluate import store_evaluation
from thumbwheel.evaluation.gate import gate
from thumbwheel.evaluation.policy import GatePolicy, GateVerdict
from thumbwheel.evaluation.types import EOS, FORMAT, LENGTH, Guard, Spread
from thumbwheel.loop.decision_card import CheckFinding, decision_card, question_in_words
from thumbwheel.loop.trigger_types import Pending, Wish, WishState
from thumbwheel.models import versions
from thumbwheel.models.types import Basis, ModelVersion

TIGHT = Spread(centre=0.0, error=0.002, degrees=99.0, limit=1.0)


@pytest.fixture
def candidate(empty_ws: Workspace, tmp_path: Path) -> ModelVersion:
    base = versions.ensure_base(empty_ws, "support", "base", "f" * 64)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    return versions.add_candidate(empty_ws, base, None, adapter)


def guard(name: str, before: float, after: float, n: int = 100) -> Guard:
    return Guard(name=name, before=before, after=after, n=n, spread=TIGHT)


def decided(ws: Workspace, version: ModelVersion, *guards: Guard) -> Pending:
    """Evaluate, decide, and ask whether it goes live."""
    plain = evaluation_of(ws, version, Basis.GOLD, gains=40, losses=2)
    name = f"{plain.id}_guards"
    evaluation = plain.model_copy(update={"guards": guards, "id": name, "key": name})
    gate(ws, store_evaluation(ws, evaluation), GatePolicy(unmeasured_guard="allow"))
    now = datetime.now(UTC)
    return Pending(
        "dec_1",
        None,
        Wish.PROMOTE,
        version.id,
        version.name,
        f"make {version.name} live (basis gold)?",
        {"reasons": ["'Which bank?': 'Hers' instead of 'Ours'"]},
        WishState.WAITING,
        None,
        None,
        now,
        None,
    )


def test_the_summary_is_in_a_readers_words(empty_ws: Workspace, candidate: ModelVersion) -> None:
    card = decision_card(empty_ws, decided(empty_ws, candidate))
    assert card.question == "Make v1 live?"
    assert card.summary == ("v1 answers 63 of 100 more test questions right; 7 checks had no data.")
    assert "of 100 with 95 % confidence, on 60 questions that you reviewed" in card.certainty
    assert card.remarks == ["'Which bank?': 'Hers' instead of 'Ours'"]
    assert len(card.examples) == 5
    assert card.why_not_live is None and not card.is_canary


def test_each_check_stands_once_and_none_without_data_is_good(
    empty_ws: Workspace, candidate: ModelVersion
) -> None:
    guards = (guard(EOS, 0.98, 0.98), guard(LENGTH, 40, 41), guard(FORMAT, 0.9, 0.9, n=5))
    card = decision_card(empty_ws, decided(empty_ws, candidate, *guards))
    assert card.summary == (
        "v1 answers 63 of 100 more test questions right; no measured check got worse; 5 "
        "checks had no data."
    )
    labels = [check.label for check in card.checks]
    assert len(labels) == len(set(labels)) == 7
    by_label = {check.label: check for check in card.checks}
    ends = by_label["answers come to an end"]
    assert (ends.finding, ends.figures) == (CheckFinding.HOLDS, "98 % before, 98 % after, of 100")
    form = by_label["answers keep their format"]
    assert (form.finding, form.figures) == (
        CheckFinding.UNMEASURED,
        "5 of at least 20 groups of answers",
    )


def test_what_got_worse_is_said(empty_ws: Workspace, candidate: ModelVersion) -> None:
    worse = guard(EOS, 0.98, 0.5)
    pending = decided(empty_ws, candidate, worse.model_copy(update={"spread": TIGHT}))
    card = decision_card(empty_ws, pending)
    assert card.summary == (
        "v1 answers 63 of 100 more test questions right; 1 check got worse; 6 checks had no data."
    )


def test_a_version_that_was_not_evaluated(empty_ws: Workspace, candidate: ModelVersion) -> None:
    now = datetime.now(UTC)
    pending = Pending(
        "dec_2",
        None,
        Wish.DEPLOY,
        candidate.id,
        "v1",
        "deploy v1 on ollama?",
        {},
        WishState.WAITING,
        None,
        None,
        now,
        None,
    )
    card = decision_card(empty_ws, pending)
    assert card.summary.startswith("v1 has not been evaluated")
    assert card.question == "Try v1 as canary?"
    assert (card.checks, card.certainty) == ([], "")
    assert card.why_not_live == "the gate approved it for a canary only"


def test_the_question_is_which_version_becomes_live(
    empty_ws: Workspace, candidate: ModelVersion
) -> None:
    """A version that has to be deployed first goes live by the same answer, so nobody is asked in
    the words of targets."""
    pending = decided(empty_ws, candidate)
    evidence = {"verdict": GateVerdict.APPROVED}
    deploy = replace(pending, kind=Wish.DEPLOY, question="deploy v1 on ollama?", evidence=evidence)
    assert question_in_words(deploy) == "Make v1 live?"
    limited = replace(deploy, evidence={"verdict": GateVerdict.CANARY})
    assert question_in_words(limited) == "Try v1 as canary?"
    export = replace(deploy, kind=Wish.EXPORT, question="export v1 as gguf?")
    assert question_in_words(export) == "Export v1 as gguf?"
