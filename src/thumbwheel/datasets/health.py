"""Is a dataset fit for training? Checks of its rows, each with a verdict, what it found, and the
rows concerned.

Lives here: the checks. Nothing here changes or drops a row. A build runs them on up to `checked`
rows of each split, before anything is frozen; an error stops it unless its check is named in
`allow`. To add a check: a function of `CheckedRows` and a line in CHECKS.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from thumbwheel.core.errors import DataError, InputError
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets import pii
from thumbwheel.datasets.minhash import near_pairs
from thumbwheel.datasets.row_stats import ENOUGH, LONGER
from thumbwheel.datasets.split import asked_text, dialogue_keys, turn_key
from thumbwheel.datasets.types import SPLITS

OK, WARNING, ERROR, NONE = "ok", "warning", "error", "not applicable"
SHOWN = 20
"""Rows that a finding names."""
RARE = 0.1
"""Share of the rarer class in train below which balance is worth a warning: class weights above 9
rest on few examples."""
COPIES = 0.05
"""Share of rows with a near copy from which they are worth a warning."""
LEAK = 0.1
"""Share of held-out prompts with a near copy in training from which an evaluation would measure
memory: an error."""
CONFLICT = 0.1
"""Share of rows whose raters disagree from which it is worth a warning."""
NOISE = 0.1
"""Estimated share of wrong labels from which they are worth a warning."""
CHARACTERS = 4.0
"""Characters a token, where no tokenizer is given: usual for English; fewer in other languages."""


@dataclass(frozen=True)
class Finding:
    """What one check says. `rows` are the ids of the first rows concerned, `count` of how many."""

    check: str
    verdict: str
    text: str
    count: int = 0
    rows: tuple[str, ...] = ()


@dataclass
class CheckedRow:
    """One row as the checks see it. `strength` is what was left of its weight after disagreement,
    from 0 to 1.

    `answered` are its prompt with each of its answers, `remembered` the turns of its history
    (`split.turn_key`).
    """

    row_id: str
    split: str
    prompt: str
    answers: tuple[str, ...]
    label: bool | None
    pair: bool
    strength: float
    answered: frozenset[int] = frozenset()
    remembered: frozenset[int] = frozenset()


@dataclass
class CheckedRows:
    """The rows that are checked, `total` of the dataset, and what truncation needs: tokens of a
    text, and the chosen length."""

    total: int = 0
    rows: list[CheckedRow] = field(default_factory=list)
    length: int | None = None
    tokens: Callable[[str], int] | None = None
    _near: list[tuple[CheckedRow, CheckedRow, float]] | None = None

    def take(self, rows: Iterable[Any], fitted: Mapping[str, Any] | None = None) -> None:
        """Add rows of the shapes' classes; `fitted` where their weights have class weights in them."""
        self._near = None
        weights = (fitted or {}).get("class_weights")
        for row in rows:
            label = getattr(row, "label", None)
            scale = (
                1.0
                if weights is None or label is None
                else weights["desirable" if label else "undesirable"]
            )
            answers = tuple(_answers(row))
            key, turns = dialogue_keys(row.prompt)
            answered = frozenset(turn_key(key, answer) for answer in answers)
            told = (
                asked_text(row.prompt),
                answers,
                label,
                hasattr(row, "chosen"),
                row.weight / scale,
                answered,
                frozenset(turns),
            )
            self.rows.append(CheckedRow(row.row_id, row.split, *told))

    def near(self) -> list[tuple[CheckedRow, CheckedRow, float]]:
        """Rows with nearly the same prompt and answers, and their overlap."""
        if self._near is None:
            rows = sorted(
                self.rows, key=lambda row: SPLITS.index(row.split)
            )  # equal texts are a chain, which has to begin in train
            pairs = near_pairs([f"{row.prompt}\n{' '.join(row.answers)}" for row in rows])
            self._near = [(rows[one], rows[two], overlap) for one, two, overlap in pairs]
        return self._near

    def characters(self) -> dict[str, float]:
        """Mean lengths of the prompts and of the answers of these rows."""
        prompts = [len(row.prompt) for row in self.rows]
        answers = [len(answer) for row in self.rows for answer in row.answers]
        return {
            name: round(fmean(some), 1)
            for name, some in (("prompt", prompts), ("answer", answers))
            if some
        }

    def of(self, *splits: str) -> list[CheckedRow]:
        """Those of these splits."""
        return [row for row in self.rows if row.split in splits]


def _answers(row: Any) -> Iterator[str]:
    for name in ("completion", "chosen", "rejected"):
        if hasattr(row, name):
            yield getattr(row, name)
    yield from getattr(row, "completions", ())


def check(texts: CheckedRows) -> list[Finding]:
    """All findings, in the order of CHECKS."""
    return [one(texts) for one in CHECKS.values()]


def demand(findings: Iterable[Finding], allow: Iterable[str], what: str) -> None:
    """Raises DataError for the errors among `findings` that are not allowed, InputError for an
    unknown check in `allow`."""
    allowed = set(allow)
    for name in allowed - CHECKS.keys():
        raise InputError(
            f"--allow {name}",
            "there is no such check",
            f"Known: {', '.join(CHECKS)}.{nearest(name, CHECKS)}",
        )
    stopped = [one for one in findings if one.verdict == ERROR and one.check not in allowed]
    if stopped:
        named = "; ".join(
            f"{one.check}: {one.text} (such as {', '.join(one.rows[:3])})" for one in stopped
        )
        ways = " ".join(f"--allow {one.check}" for one in stopped)
        raise DataError(
            what,
            f"its rows are not fit for training: {named}",
            f"Mend the data, or say that you know: {ways}",
        )


def _finding(name: str, verdict: str, text: str, rows: Iterable[str] = ()) -> Finding:
    every = list(dict.fromkeys(rows))
    return Finding(name, verdict, text, len(every), tuple(every[:SHOWN]))


def _balance(texts: CheckedRows) -> Finding:
    counts = Counter(row.label for row in texts.of("train") if row.label is not None)
    if not counts:
        return _finding("balance", NONE, "the rows have no classes")
    rarer = min((True, False), key=lambda label: counts[label])
    share = counts[rarer] / counts.total()
    word = "desirable" if rarer else "undesirable"
    few = [row.row_id for row in texts.of("train") if row.label is rarer] if share < RARE else []
    return _finding(
        "balance", WARNING if few else OK, f"{share:.0%} of the training labels are {word}", few
    )


def _duplicates(texts: CheckedRows) -> Finding:
    train = texts.of("train")
    pairs = [
        (one, two, overlap)
        for one, two, overlap in texts.near()
        if one.split == two.split == "train"
    ]
    exact = sum(overlap == 1 for _, _, overlap in pairs)
    copies = [row.row_id for pair in pairs for row in pair[:2]]
    many = len(set(copies)) > COPIES * len(train) and len(train) >= ENOUGH
    text = f"{exact} exact and {len(pairs) - exact} near copies among {len(train)} training rows"
    return _finding("duplicates", WARNING if many else OK, text, copies)


def _leakage(texts: CheckedRows) -> Finding:
    prompts: dict[str, list[CheckedRow]] = defaultdict(list)
    for row in texts.rows:
        prompts[row.prompt].append(row)
    every = list(prompts)
    strict = [max(SPLITS.index(row.split) for row in prompts[prompt]) for prompt in every]
    held = sum(place > 0 for place in strict)
    if not held or held == len(every):
        return _finding(
            "leakage", NONE, "nothing is held out" if not held else "nothing is in train"
        )
    copied: set[int] = set()
    for first, second, _ in near_pairs(every, templates=False):
        if (strict[first] > 0) != (strict[second] > 0):
            copied.add(first if strict[first] else second)
    continued = _continued(
        texts, {prompt: number for number, prompt in enumerate(every) if strict[number]}
    )
    leaked = sorted(copied | continued)
    rows = [prompts[every[number]][0].row_id for number in leaked]
    verdict = (
        OK
        if not leaked
        else ERROR
        if len(leaked) > LEAK * held and len(leaked) >= ENOUGH
        else WARNING
    )
    text = (
        f"of {held} held-out prompts (dev and gate) {len(copied)} have a near copy in train, "
        f"{len(continued)} are of one dialogue with it"
    )
    return _finding("leakage", verdict, text, rows)


def _continued(texts: CheckedRows, held: Mapping[str, int]) -> set[int]:
    """Numbers of the held-out prompts whose history holds a training prompt and its answer, or that
    stand in such a history."""
    answered = frozenset[int]().union(*(row.answered for row in texts.of("train")))
    remembered = frozenset[int]().union(*(row.remembered for row in texts.of("train")))
    continued = set()
    for row in texts.of("dev", "gate"):
        if not answered.isdisjoint(row.remembered) or not remembered.isdisjoint(row.answered):
            continued.add(held[row.prompt])
    return continued


def _conflict(texts: CheckedRows) -> Finding:
    torn = [row.row_id for row in texts.rows if row.strength < 1 - 1e-6]
    share = len(torn) / max(1, len(texts.rows))
    text = f"raters disagree about {share:.0%} of the rows, which weigh less for it"
    return _finding("conflict", WARNING if share > CONFLICT else OK, text, torn)


def _length(texts: CheckedRows) -> Finding:
    pairs = [
        (row, len(row.answers[0]), len(row.answers[1])) for row in texts.of("train") if row.pair
    ]
    judged = [
        (row, len(row.answers[0]))
        for row in texts.of("train")
        if row.label is not None and not row.pair
    ]
    if pairs:
        unequal = [(row, one > other) for row, one, other in pairs if one != other]
        share = sum(longer for _, longer in unequal) / max(1, len(unequal))
        word, count = (
            f"the chosen answer is the longer one in {share:.0%} of the pairs",
            len(unequal),
        )
        rows = [row.row_id for row, longer in unequal if longer is (share > 0.5)]
    elif judged:
        share, count = _auc([(length, bool(row.label)) for row, length in judged]), len(judged)
        word = f"a longer answer is the desirable one in {share:.0%} of the comparisons"
        rows = [row.row_id for row, _ in judged]
    else:
        return _finding("length", NONE, "the rows hold no better and worse answers")
    biased = count >= ENOUGH and not 1 - LONGER < share < LONGER
    text = f"{word}; the model may learn length instead" if biased else word
    return _finding("length", WARNING if biased else OK, text, rows if biased else ())


def _auc(judged: list[tuple[int, bool]]) -> float:
    """How often a good answer is longer than a bad one, ties half; 0.5 where a class is empty."""
    import numpy as np

    labels = np.array([label for _, label in judged])
    good, bad = int(labels.sum()), int((~labels).sum())
    if not good or not bad:
        return 0.5
    _, place, counts = np.unique(
        [length for length, _ in judged], return_inverse=True, return_counts=True
    )
    ranks = (counts.cumsum() - (counts - 1) / 2)[
        place
    ]  # as scipy's rankdata, whose import takes longer than all the checks
    return float((ranks[labels].sum() - good * (good + 1) / 2) / (good * bad))


def _noise(texts: CheckedRows) -> Finding:
    if all(row.label is None for row in texts.rows):
        return _finding("noise", NONE, "the rows have no labels")
    pairs = [
        (one, two)
        for one, two, _ in texts.near()
        if one.label is not None and two.label is not None
    ]
    torn = [row.row_id for one, two in pairs if one.label is not two.label for row in (one, two)]
    if len(pairs) < ENOUGH:
        return _finding(
            "noise",
            NONE,
            f"too few nearly equal answers to estimate it ({len(pairs)}, from {ENOUGH} on it can "
            "be)",
            torn,
        )
    differ = sum(one.label is not two.label for one, two in pairs) / len(pairs)
    rate = (
        1 - math.sqrt(max(0.0, 1 - 2 * differ))
    ) / 2  # two labels that are each wrong at this rate differ so often
    text = (
        f"about {rate:.0%} of the labels are wrong: {differ:.0%} of {len(pairs)} pairs of nearly "
        "equal answers have different ones"
    )
    return _finding("noise", WARNING if rate > NOISE else OK, text, torn)


def _pii(texts: CheckedRows) -> Finding:
    kinds: Counter[str] = Counter()
    rows = []
    for row in texts.rows:
        own = {kind for kind, _ in pii.find_pii("\n".join((row.prompt, *row.answers)))}
        kinds.update(own)
        rows += [row.row_id] if own else []
    verdict = OK if not kinds else ERROR if kinds[pii.SECRET] else WARNING
    named = ", ".join(f"{kind} in {count} rows" for kind, count in kinds.most_common())
    return _finding(
        "pii", verdict, named or "none found (names and addresses are not looked for)", rows
    )


def _truncation(texts: CheckedRows) -> Finding:
    if texts.length is None:
        return _finding("truncation", NONE, "no length was chosen")
    count = texts.tokens or (lambda text: math.ceil(len(text) / CHARACTERS))
    over = [
        row.row_id
        for row in texts.rows
        if max((count(row.prompt) + count(one) for one in row.answers), default=0) > texts.length
    ]
    how = "by the tokenizer" if texts.tokens else f"estimated at {CHARACTERS:g} characters a token"
    share = len(over) / max(1, len(texts.rows))
    return _finding(
        "truncation",
        WARNING if over else OK,
        f"{share:.0%} of the rows are longer than {texts.length} tokens, {how}",
        over,
    )


CHECKS: dict[str, Callable[[CheckedRows], Finding]] = {
    "balance": _balance,
    "duplicates": _duplicates,
    "leakage": _leakage,
    "conflict": _conflict,
    "length": _length,
    "noise": _noise,
    "pii": _pii,
    "truncation": _truncation,
}
