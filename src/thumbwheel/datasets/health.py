"""Checks whether the rows of a dataset are fit for training. Each check gives a verdict, a text and
the rows concerned.

Nothing here changes or drops a row. A build runs the checks on up to `checked` rows of each split,
before anything is frozen; an error stops it unless its check is named in `allow`. To add a check: a
function of `CheckedRows` and a line in CHECKS.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Any

from thumbwheel.core.errors import DataError, InputError
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets.minhash import near_pairs
from thumbwheel.datasets.row_stats import ENOUGH, LONGER
from thumbwheel.datasets.split import asked_text, dialogue_keys, turn_key
from thumbwheel.datasets.types import SPLITS, Finding
from thumbwheel.sdk.detectors import KEY, find

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
CONTROL_TOKEN = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|</?s>|<(?:start|end)_of_turn>"
    r"|<(?:bos|eos|pad|unk|mask)>|\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\]"
    r"|<</?SYS>>|\[(?:CLS|SEP|PAD|MASK|UNK)\]"
)
"""Control tokens of common tokenizers; which the base has is not known here."""
NOISE = 0.1
"""Estimated share of wrong labels from which they are worth a warning."""
CHARACTERS = 4.0
"""Characters a token, where no tokenizer is given: usual for English; fewer in other languages."""


@dataclass
class CheckedRow:
    """One row as the checks see it. `strength` is what disagreement left of its weight, from 0 to
    1.

    `answered` are the turns of its prompt and each of its answers, `remembered` the turns of its
    history (`split.turn_key`).
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
    is_correction: bool = False
    """Whether a correction says what its label is."""
    control_tokens: frozenset[str] = frozenset()
    """Control tokens that stand in the texts of its messages and answers."""


@dataclass
class CheckedRows:
    """The rows that are checked, of `total` in the dataset, and what the check of truncation needs:
    `tokens` counts those of a text, `length` is the longest that is not cut."""

    total: int = 0
    rows: list[CheckedRow] = field(default_factory=list)
    length: int | None = None
    tokens: Callable[[str], int] | None = None
    _near_pairs: list[tuple[CheckedRow, CheckedRow, float]] | None = None

    def take(self, rows: Iterable[Any], fitted: Mapping[str, Any] | None = None) -> None:
        """Add rows of a shape's class; with `fitted`, their weights contain class weights."""
        self._near_pairs = None
        weights = (fitted or {}).get("class_weights")
        for row in rows:
            label = getattr(row, "label", None)
            class_weight = 1.0
            if weights is not None and label is not None:
                class_weight = weights["desirable" if label else "undesirable"]
            answers = tuple(_answers(row))
            key, turns = dialogue_keys(row.prompt)
            self.rows.append(
                CheckedRow(
                    row_id=row.row_id,
                    split=row.split,
                    prompt=asked_text(row.prompt),
                    answers=answers,
                    label=label,
                    pair=hasattr(row, "chosen"),
                    strength=row.weight / class_weight,
                    answered=frozenset(turn_key(key, answer) for answer in answers),
                    remembered=frozenset(turns),
                    is_correction=getattr(row, "origin", None) == "correction",
                    control_tokens=frozenset(_control_tokens([*row.prompt, *answers])),
                )
            )

    def near_pairs(self) -> list[tuple[CheckedRow, CheckedRow, float]]:
        """Return pairs of rows with nearly the same prompt and answers, and their overlap."""
        if self._near_pairs is None:
            # equal texts are reported as a chain, which has to begin in train
            rows = sorted(self.rows, key=lambda row: SPLITS.index(row.split))
            pairs = near_pairs([f"{row.prompt}\n{' '.join(row.answers)}" for row in rows])
            self._near_pairs = [
                (rows[first], rows[second], overlap) for first, second, overlap in pairs
            ]
        return self._near_pairs

    def mean_lengths(self) -> dict[str, float]:
        """Return the mean lengths in characters of the prompts and of the answers."""
        answers = chain.from_iterable(row.answers for row in self.rows)
        lengths = {
            "prompt": [len(row.prompt) for row in self.rows],
            "answer": [len(answer) for answer in answers],
        }
        return {name: round(fmean(values), 1) for name, values in lengths.items() if values}

    def of(self, *splits: str) -> list[CheckedRow]:
        """Return the rows of these splits."""
        return [row for row in self.rows if row.split in splits]


def _answers(row: Any) -> Iterator[str]:
    for name in ("completion", "chosen", "rejected"):
        if hasattr(row, name):
            yield getattr(row, name)
    yield from getattr(row, "completions", ())


def _control_tokens(value: Any) -> Iterator[str]:
    """Find the control tokens in all strings of a JSON value."""
    if isinstance(value, str):
        yield from CONTROL_TOKEN.findall(value)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _control_tokens(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _control_tokens(part)


def check(checked_rows: CheckedRows) -> list[Finding]:
    """Return all findings, in the order of CHECKS."""
    return [run_check(checked_rows) for run_check in CHECKS.values()]


def require_healthy(findings: Iterable[Finding], allow: Iterable[str], label: str) -> None:
    """Raise DataError if `findings` has errors that are not allowed, InputError for an unknown
    check in `allow`."""
    allowed = set(allow)
    for name in allowed - CHECKS.keys():
        raise InputError(
            f"--allow {name}",
            "there is no such check",
            f"Known: {', '.join(CHECKS)}.{nearest(name, CHECKS)}",
        )
    reasons, options = [], []
    for finding in findings:
        if finding.verdict == ERROR and finding.check not in allowed:
            examples = ", ".join(finding.rows[:3])
            reasons.append(f"{finding.check}: {finding.text} (such as {examples})")
            options.append(f"--allow {finding.check}")
    if reasons:
        raise DataError(
            label,
            f"its rows are not fit for training: {'; '.join(reasons)}",
            f"Fix the data, or allow it: {' '.join(options)}",
        )


def _finding(name: str, verdict: str, text: str, row_ids: Iterable[str] = ()) -> Finding:
    distinct = list(dict.fromkeys(row_ids))
    return Finding(name, verdict, text, len(distinct), tuple(distinct[:SHOWN]))


def _warning(name: str, is_bad: bool, text: str, row_ids: Iterable[str]) -> Finding:
    return _finding(name, WARNING if is_bad else OK, text, row_ids)


def _balance(sample: CheckedRows) -> Finding:
    counts = Counter(row.label for row in sample.of("train") if row.label is not None)
    if not counts:
        return _finding("balance", NONE, "the rows have no classes")
    rarer = min((True, False), key=lambda label: counts[label])
    share = counts[rarer] / counts.total()
    word = "desirable" if rarer else "undesirable"
    rare_rows = []
    if share < RARE:
        rare_rows = [row.row_id for row in sample.of("train") if row.label is rarer]
    text = f"{share:.0%} of the training labels are {word}"
    return _warning("balance", bool(rare_rows), text, rare_rows)


def _duplicates(sample: CheckedRows) -> Finding:
    train = sample.of("train")
    exact = near = 0
    copies = []
    for first, second, overlap in sample.near_pairs():
        if first.split == second.split == "train":
            exact += overlap == 1
            near += overlap < 1
            copies += [first.row_id, second.row_id]
    many = len(set(copies)) > COPIES * len(train) and len(train) >= ENOUGH
    text = f"{exact} exact and {near} near copies among {len(train)} training rows"
    return _warning("duplicates", many, text, copies)


def _leakage(sample: CheckedRows) -> Finding:
    rows_of: dict[str, list[CheckedRow]] = defaultdict(list)
    for row in sample.rows:
        rows_of[row.prompt].append(row)
    prompts = list(rows_of)
    held_out = [any(row.split != "train" for row in rows_of[prompt]) for prompt in prompts]
    count = sum(held_out)
    if not count:
        return _finding("leakage", NONE, "nothing is held out")
    if count == len(prompts):
        return _finding("leakage", NONE, "nothing is in train")

    # held-out prompts with a near copy in train, and those of one dialogue with a training prompt
    copied: set[str] = set()
    for first, second, _ in near_pairs(prompts, templates=False):
        if held_out[first] != held_out[second]:
            copied.add(prompts[first if held_out[first] else second])
    continued = _continued(sample)

    leaked = [prompt for prompt in prompts if prompt in copied or prompt in continued]
    verdict = OK
    if leaked:
        many = len(leaked) > LEAK * count and len(leaked) >= ENOUGH
        verdict = ERROR if many else WARNING
    text = (
        f"of {count} held-out prompts (dev and gate) {len(copied)} have a near copy in train, "
        f"{len(continued)} are of one dialogue with it"
    )
    return _finding("leakage", verdict, text, [rows_of[prompt][0].row_id for prompt in leaked])


def _continued(sample: CheckedRows) -> set[str]:
    """Return the held-out prompts whose history has a training prompt and its answer, or that are
    in the history of a training prompt."""
    answered = frozenset[int]().union(*(row.answered for row in sample.of("train")))
    remembered = frozenset[int]().union(*(row.remembered for row in sample.of("train")))
    continued = set()
    for row in sample.of("dev", "gate"):
        if not answered.isdisjoint(row.remembered) or not remembered.isdisjoint(row.answered):
            continued.add(row.prompt)
    return continued


def _conflict(sample: CheckedRows) -> Finding:
    disputed = [row.row_id for row in sample.rows if row.strength < 1 - 1e-6]
    share = len(disputed) / max(1, len(sample.rows))
    text = f"raters disagree about {share:.0%} of the rows, which weigh less for it"
    return _warning("conflict", share > CONFLICT, text, disputed)


def _length(sample: CheckedRows) -> Finding:
    train = sample.of("train")
    pairs = [row for row in train if row.pair]
    labelled = [row for row in train if row.label is not None and not row.pair]
    if pairs:
        longer, shorter = [], []
        for row in pairs:
            chosen, rejected = row.answers
            if len(chosen) > len(rejected):
                longer.append(row.row_id)
            elif len(chosen) < len(rejected):
                shorter.append(row.row_id)
        count = len(longer) + len(shorter)
        share = len(longer) / max(1, count)
        text = f"the chosen answer is the longer one in {share:.0%} of the pairs"
        row_ids = longer if share > 0.5 else shorter
    elif labelled:
        count = len(labelled)
        lengths = [len(row.answers[0]) for row in labelled]
        share = _auc(lengths, [bool(row.label) for row in labelled])
        text = f"a longer answer is the desirable one in {share:.0%} of the comparisons"
        row_ids = [row.row_id for row in labelled]
    else:
        return _finding("length", NONE, "the rows hold no better and worse answers")
    if count >= ENOUGH and not 1 - LONGER < share < LONGER:
        return _finding("length", WARNING, f"{text}; the model may learn length instead", row_ids)
    return _finding("length", OK, text)


def _auc(lengths: list[int], is_good: list[bool]) -> float:
    """Return how often a good answer is longer than a bad one, ties half; 0.5 if a class is
    empty."""
    import numpy as np

    labels = np.array(is_good)
    good, bad = int(labels.sum()), int((~labels).sum())
    if not good or not bad:
        return 0.5
    # the ranks are those of scipy's rankdata, whose import takes longer than all the checks
    _, index, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[index]
    return float((ranks[labels].sum() - good * (good + 1) / 2) / (good * bad))


def _is_one_correction(first: CheckedRow, second: CheckedRow) -> bool:
    """Return whether the rows are an answer and somebody's edit of it, which differ on purpose."""
    is_edited = first.is_correction or second.is_correction
    return is_edited and first.prompt == second.prompt and first.label is not second.label


def _noise(sample: CheckedRows) -> Finding:
    if all(row.label is None for row in sample.rows):
        return _finding("noise", NONE, "the rows have no labels")
    pairs = differing = 0
    disputed = []
    for first, second, _ in sample.near_pairs():
        if first.label is None or second.label is None or _is_one_correction(first, second):
            continue
        pairs += 1
        if first.label is not second.label:
            differing += 1
            disputed += [first.row_id, second.row_id]
    if pairs < ENOUGH:
        text = f"too few nearly equal answers to estimate it ({pairs}, from {ENOUGH} on it can be)"
        return _finding("noise", NONE, text, disputed)
    share = differing / pairs
    # two labels that are each wrong at this rate differ in this share of the pairs
    rate = (1 - math.sqrt(max(0.0, 1 - 2 * share))) / 2
    text = (
        f"about {rate:.0%} of the labels are wrong: {share:.0%} of {pairs} pairs of nearly "
        "equal answers have different ones"
    )
    return _warning("noise", rate > NOISE, text, disputed)


def _pii(sample: CheckedRows) -> Finding:
    counts: Counter[str] = Counter()
    row_ids = []
    for row in sample.rows:
        text = "\n".join((row.prompt, *row.answers))
        kinds = {kind for kind, _, _ in find(text)}
        counts.update(kinds)
        if kinds:
            row_ids.append(row.row_id)
    if not counts:
        return _finding("pii", OK, "none found (names and addresses are not looked for)")
    verdict = ERROR if counts[KEY] else WARNING
    text = ", ".join(f"{kind} in {count} rows" for kind, count in counts.most_common())
    return _finding("pii", verdict, text, row_ids)


def _control(sample: CheckedRows) -> Finding:
    rows = [row for row in sample.rows if row.control_tokens]
    if not rows:
        return _finding("control_tokens", OK, "no text has any")
    counts = Counter(chain.from_iterable(row.control_tokens for row in rows))
    shown = ", ".join(f"{token} in {count} rows" for token, count in counts.most_common(5))
    text = f"{shown}; training and the embedded server read them as text"
    return _finding("control_tokens", WARNING, text, [row.row_id for row in rows])


def _truncation(sample: CheckedRows) -> Finding:
    if sample.length is None:
        return _finding("truncation", NONE, "no length was chosen")
    count = sample.tokens or (lambda text: math.ceil(len(text) / CHARACTERS))
    too_long = []
    for row in sample.rows:
        longest = max((count(answer) for answer in row.answers), default=None)
        if longest is not None and count(row.prompt) + longest > sample.length:
            too_long.append(row.row_id)
    how = "by the tokenizer" if sample.tokens else f"estimated at {CHARACTERS:g} characters a token"
    share = len(too_long) / max(1, len(sample.rows))
    text = f"{share:.0%} of the rows are longer than {sample.length} tokens, {how}"
    return _warning("truncation", bool(too_long), text, too_long)


CHECKS: dict[str, Callable[[CheckedRows], Finding]] = {
    "balance": _balance,
    "duplicates": _duplicates,
    "leakage": _leakage,
    "conflict": _conflict,
    "length": _length,
    "noise": _noise,
    "pii": _pii,
    "control_tokens": _control,
    "truncation": _truncation,
}
