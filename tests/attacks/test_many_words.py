"""Much that an app says about one prompt: thousands of answers, long rankings, thousands of raters.
The work grows as the number of statements does, and not as its square."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pydantic_core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.gateway_world import AGENT, opened_home
from thumbwheel.capture.ingest import ingest
from thumbwheel.datasets.shapes import pairs
from thumbwheel.datasets.shapes.pairs import Pairs
from thumbwheel.datasets.types import DatasetConfig, Drop, Edge, Evidence, JudgedText
from thumbwheel.models.types import Agent
from thumbwheel.review.agreement import MOST_RATERS, Crowd, panel
from thumbwheel.review.hand_out import next_items
from thumbwheel.review.queues import QueueSelection, create
from thumbwheel.review.rate import RatingRequest, rate
from thumbwheel.review.raters import report
from thumbwheel.review.types import QueueConfig, RaterVerdict
from thumbwheel.rewards.aggregate import plurality
from thumbwheel.rewards.feedback_queries import preferences
from thumbwheel.rewards.label import pair_votes
from thumbwheel.rewards.types import Preference, Value
from thumbwheel.stats import agreement
from thumbwheel.stats.agreement import _Verdicts, alpha, kappa

TOO_MANY = "more siblings than are taken from one prompt"
Judged = tuple[bool | None, float | None]
"""(good, number from 0 to 1) of an answer."""


def answer(number: int, judged: Judged) -> JudgedText:
    good, unit = judged
    feedback_ids = (f"fbk_{number}",)
    value = None if unit is None else Value(unit, (0.0, 1.0), "score", feedback_ids)
    strength = 0.0 if good is None else 1.0
    traces, subjects = (f"trc_{number}",), ("sub_1",)
    head = (f"answer {number}", good, strength, False, "upvote", False, "group")
    return JudgedText(*head, feedback_ids, traces, subjects, "stop", None, value)


def evidence(judged: Sequence[Judged], compared: Sequence[tuple[int, int]] = ()) -> Evidence:
    answers = tuple(answer(number, each) for number, each in enumerate(judged))
    edges = tuple(Edge(better, worse, "preference", 1.0, ("fbk",)) for better, worse in compared)
    prompt = [{"role": "user", "content": "Hi"}]
    return Evidence("msg_1", prompt, None, "train", answers, edges)


def all_siblings(asked: Evidence, margin: float) -> Iterator[tuple[int, int]]:
    """Every pair that is a sibling, in the order in which they are taken: plainly, by walking over
    all of them."""
    seen = {frozenset((edge.better, edge.worse)) for edge in asked.edges}
    numbered = list(enumerate(asked.answers))
    good = [number for number, each in numbered if each.good]
    bad = [number for number, each in numbered if each.good is False]
    for turn in range(len(bad)):
        for number, better in enumerate(good):
            worse = bad[(number + turn) % len(bad)]
            if frozenset((better, worse)) not in seen:
                seen.add(frozenset((better, worse)))
                yield better, worse
    units = [(number, each.value.unit) for number, each in numbered if each.value is not None]
    apart = []
    for (better, higher), (worse, lower) in product(units, units):
        if higher - lower > margin + 1e-9 and frozenset((better, worse)) not in seen:
            apart.append((lower - higher, better, worse))
    for _, better, worse in sorted(apart):
        yield better, worse


EIGHTHS = st.sampled_from([None, *(number / 8 for number in range(9))])
ANY_JUDGED = st.lists(st.tuples(st.sampled_from([True, False, None]), EIGHTHS), max_size=9)
ANY_COMPARED = st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=6)


@given(ANY_JUDGED, ANY_COMPARED, st.integers(0, 40))
def test_siblings_are_those_of_a_walk_over_all_pairs(
    judged: list[Judged], compared: set[tuple[int, int]], limit: int
) -> None:
    named = [pair for pair in compared if pair[0] != pair[1] and max(pair) < len(judged)]
    asked = evidence(judged, sorted(named))
    rows = list(Pairs().rows(asked, DatasetConfig(siblings=limit)))
    texts = [(row.chosen, row.rejected) for row in rows[len(named) :] if not isinstance(row, Drop)]
    dropped = sum(row.rows for row in rows if isinstance(row, Drop) and row.reason == TOO_MANY)
    expected = [
        (f"answer {better}", f"answer {worse}") for better, worse in all_siblings(asked, 0.25)
    ]
    assert texts == expected[:limit]
    assert dropped == len(expected[limit:])


@pytest.mark.parametrize("kind", ["thumbs", "scores", "both"])
def test_a_prompt_with_many_answers_makes_no_pair_of_every_two(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_made = 0

    def counted(*fields: Any) -> Edge:
        nonlocal n_made
        n_made += 1
        return Edge(*fields)

    judged: list[Judged] = []
    for number in range(600):
        good, unit = number % 2 == 0, (number % 7) / 6
        judged.append((None if kind == "scores" else good, None if kind == "thumbs" else unit))
    asked = evidence(judged)
    monkeypatch.setattr(pairs, "Edge", counted)
    rows = list(Pairs().rows(asked, DatasetConfig(siblings=5)))
    assert n_made <= 10
    assert len(rows) == 6
    assert isinstance(rows[-1], Drop)


def ranking(count: int, *, tied: int = 1) -> Preference:
    """A ranking of traces, of which every `tied` stand side by side; the best has the last id."""
    names = [f"trc_{number:05}" for number in reversed(range(count))]
    groups = tuple(tuple(names[start : start + tied]) for start in range(0, count, tied))
    return Preference("fbk_1", groups, "rat_1", 1.0, datetime(2026, 11, 1, tzinfo=UTC))


@pytest.mark.parametrize("tied", [1, 3, 256])
def test_a_long_ranking_makes_no_pair_of_every_two(tied: int) -> None:
    votes = pair_votes([ranking(256, tied=tied)])
    assert len(votes) <= 8 * 256
    assert len({name for pair in votes for name in pair}) == 256
    for (first, second), (vote,) in votes.items():
        # the later an id, the better the place
        ranks = [(255 - int(name.removeprefix("trc_"))) // tied for name in (first, second)]
        assert first < second
        assert vote.side == (ranks[1] > ranks[0]) - (ranks[1] < ranks[0])


@pytest.mark.parametrize("count", [2, 3, 7, 16])
def test_of_a_short_ranking_every_two_are_a_pair(count: int) -> None:
    names = [f"trc_{number:05}" for number in range(count)]
    assert sorted(pair_votes([ranking(count)])) == list(combinations(names, 2))


class CountedVerdict(str):
    """A verdict that counts how often a vote for it is counted."""

    n_hashed = 0

    def __hash__(self) -> int:
        type(self).n_hashed += 1
        return super().__hash__()

    __eq__ = str.__eq__


def votes_counted(n_raters: int) -> int:
    """How often votes are counted for a panel of so many raters, who all judged the same things."""
    verdicts = []
    for thing, rater in product(range(3), range(n_raters)):
        verdict = CountedVerdict("good" if (thing + rater) % 3 else "bad")
        verdicts.append((f"thing {thing}", f"rater {rater}", verdict))
    CountedVerdict.n_hashed = 0
    panel("good or bad", verdicts)
    return CountedVerdict.n_hashed


def test_thousands_of_raters_are_not_each_held_against_all_anew() -> None:
    assert votes_counted(1000) <= 2.5 * votes_counted(500)


def test_a_row_is_shown_of_those_who_judged_most() -> None:
    verdicts = []
    for rater in range(MOST_RATERS + 50):
        name, verdict = f"rater {rater:04}", rater % 2 == 0
        n_things = 3 if rater < MOST_RATERS else 2
        verdicts += [(f"thing {thing}", name, verdict) for thing in range(n_things)]
    raters = panel("good or bad", verdicts).raters
    assert [rater.rater for rater in raters] == [f"rater {n:04}" for n in range(MOST_RATERS)]
    assert all(rater.verdicts == 3 for rater in raters)


ANY_VERDICTS = st.lists(
    st.tuples(st.sampled_from("xyz"), st.sampled_from(["a", "b", "c", None]), st.integers(0, 3)),
    max_size=14,
)


@given(ANY_VERDICTS)
def test_the_crowd_is_all_others(verdicts: list[tuple[str, str | None, int]]) -> None:
    by_rater = {(thing, rater): verdict for thing, rater, verdict in verdicts if rater}
    lone = [(thing, verdict) for thing, rater, verdict in verdicts if rater is None]
    for shown in panel("good or bad", verdicts, judges=("c",)).raters:
        torn = alone = agreed = 0
        for (thing, rater), verdict in by_rater.items():
            if rater != shown.rater:
                continue
            others = Counter(opinion for other, opinion in lone if other == thing)
            for (other, name), opinion in by_rater.items():
                if other == thing and name not in (rater, "c"):
                    others[opinion] += 1
            crowd = plurality(others)
            alone += not others
            torn += bool(others) and crowd is None
            agreed += crowd == verdict
        units = shown.agreement.units
        assert (shown.torn, shown.alone) == (torn, alone)
        assert agreed == round((shown.agreement.share or 0) * units)


@pytest.mark.parametrize("metric", ["nominal", "ordinal", "interval"])
def test_a_thousand_different_numbers_fill_no_memory(metric: Any) -> None:
    units = [[number / 3000, (number + 1) / 3000] for number in range(0, 3000, 2)]
    tracemalloc.start()
    alpha(units, metric, rounds=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20


def test_units_of_a_kind_are_counted_once() -> None:
    units = [[number % 2, number % 3 % 2] for number in range(30_000)]
    assert len(_Verdicts.of(units).times) == 3
    thumbs = alpha(units)
    assert thumbs.units == 30_000
    assert thumbs.interval is not None and thumbs.value is not None
    assert thumbs.interval.low < thumbs.value < thumbs.interval.high


def test_an_interval_over_different_numbers_takes_fewer_resamples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_computed = 0
    original = agreement._alpha

    def counted(*arguments: Any) -> float | None:
        nonlocal n_computed
        n_computed += 1
        return original(*arguments)

    monkeypatch.setattr(agreement, "_alpha", counted)
    monkeypatch.setattr(agreement, "MOST_WORK", 400_000)
    alpha([[number, number + 1] for number in range(0, 2_000, 2)], "interval")
    assert n_computed == 1 + 400_000 // 2_000
    assert agreement._affordable(1000, 10**9) == agreement.FEWEST


def test_a_kappa_over_thousands_of_different_verdicts_fills_no_memory() -> None:
    first = [f"verdict {number}" for number in range(3_000)]
    tracemalloc.start()
    coefficient = kappa(first, first[::-1], rounds=20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert coefficient.units == 3_000
    assert peak < 8 * 2**20


def test_a_clustered_kappa_is_that_of_its_items() -> None:
    first = [number % 3 for number in range(90)]
    second = [number % 3 if number % 5 else 0 for number in range(90)]
    lone = kappa(first, second)
    clustered = kappa(first, second, [number // 3 for number in range(90)])
    assert clustered.value == lone.value
    assert clustered.interval is not None and lone.interval is not None
    assert clustered.interval.low < (lone.value or 0) < clustered.interval.high


def test_a_queue_holds_each_rater_against_a_crowd_that_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_counted = 0
    original = Crowd.of

    def counted(verdicts: Sequence[Any]) -> Crowd:
        nonlocal n_counted
        n_counted += 1
        return original(verdicts)

    lines = [{"type": "trace", "id": f"t{n}", "input": f"Hi {n}", "output": "Ho"} for n in range(3)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with opened_home(tmp_path / "home") as ws:
        ingest(ws, AGENT, "jsonl", path)
        agent = Agent.named(AGENT)
        queue = create(ws, agent, "q", QueueConfig(overlap=8), QueueSelection())
        for rater in range(8):
            name = f"r{rater}"
            for number, item in enumerate(next_items(ws, queue, name, 3).items):
                request = RatingRequest(queue, item.id, name, f"{name} {number}")
                rate(ws, agent, request, RaterVerdict(thumb=(rater + number) % 3 > 0))
        monkeypatch.setattr(Crowd, "of", counted)
        raters = report(ws, queue).raters
    assert n_counted == 2 * 3
    assert len(raters) == 8
    for rater in raters:
        assert rater.rated == 3 and rater.kappa is not None
        (week,) = rater.weeks
        assert (week.rated, week.compared) == (3, 3)


def test_a_long_ranking_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    for number in range(60):
        output = f"Answer {number}."
        lines.append({"type": "trace", "id": f"t{number}", "input": "Hi", "output": output})
    targets = [{"trace": f"t{number}"} for number in range(60)]
    value = {"ranking": [[number] for number in reversed(range(60))]}
    lines.append({"type": "feedback", "kind": "preference", "targets": targets, "value": value})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    n_parsed = 0
    original = pydantic_core.from_json

    def counted(text: Any, *arguments: Any, **settings: Any) -> Any:
        nonlocal n_parsed
        n_parsed += "ranking" in str(text)
        return original(text, *arguments, **settings)

    with opened_home(tmp_path / "home") as ws:
        ingest(ws, AGENT, "jsonl", path)
        monkeypatch.setattr(pydantic_core, "from_json", counted)
        with ws.db.read() as connection:
            (preference,) = preferences(connection, Agent.named(AGENT).id, None)
    assert len(preference.ranking) == 60
    assert n_parsed == 1
