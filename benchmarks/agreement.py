"""How far people agree with each other about pairs of answers, and judging models with the people:
on PandaLM and on llmfao.

    python benchmarks/agreement.py

Each rater is held against the plurality of the others (`thumbwheel.review.agreement`), judges
against that of the people; where two verdicts lead together there is no crowd, and the pair is left
out and counted. A tie is a verdict like the others; `decided` repeats the comparison on the pairs
that both sides decided. Intervals (95 %) resample pairs. Reads ../shared/data/preferences, or
THUMBWHEEL_TEST_DATA.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import raw

from thumbwheel.review.agreement import Panel, RaterAgreement, panel

DATA = (
    Path(
        os.environ.get("THUMBWHEEL_TEST_DATA")
        or Path(__file__).parents[1] / ".." / "shared" / "data"
    )
    / "preferences"
)
Verdict = tuple[str, str, int]
"""Pair, rater, and 1 for the first answer, -1 for the second, 0 for a tie."""
PANDALM = {0: 0, 1: 1, 2: -1}
GPT35 = {"1": 1, "2": -1, "Tie": 0}
"""What is neither ("garbage") is no verdict."""
SHOWN = 20
"""Raters with fewer comparisons stand in the JSON alone."""


def pandalm() -> Iterator[Verdict]:
    """Three annotators, and gpt-3.5 as the judge."""
    with (DATA / "pandalm-testset-v1-3annotators.jsonl").open() as lines:
        for row in map(json.loads, lines):
            for annotator in (1, 2, 3):
                yield (
                    str(row["idx"]),
                    f"annotator {annotator}",
                    PANDALM[row[f"annotator{annotator}"]],
                )
    with (DATA / "pandalm-gpt35-judge.jsonl").open() as lines:
        for row in map(json.loads, lines):
            if row["gpt_result"] in GPT35:
                yield str(row["idx"]), "gpt-3.5", GPT35[row["gpt_result"]]


def llmfao() -> Iterator[Verdict]:
    """Pseudonymous workers, and gpt-4 as the judge. The first answer is that of the model whose
    name sorts first."""
    for name in ("llmfao-crowd-comparisons.csv", "llmfao-gpt4-crowd-comparisons.csv"):
        with (DATA / name).open(newline="") as lines:
            for row in csv.DictReader(lines):
                first, second = sorted((row["left"], row["right"]))
                side = 0 if row["winner"] == "tie" else 1 if row[row["winner"]] == first else -1
                yield (
                    f"{row['prompt']} {first} {second}",
                    f"worker {row['worker']}" if "worker" in row else "gpt-4",
                    side,
                )


def decided(verdicts: list[Verdict]) -> list[Verdict]:
    """Those that are no ties."""
    return [verdict for verdict in verdicts if verdict[2]]


def measured(name: str, verdicts: list[Verdict], judge: str) -> dict[str, Any]:
    """Both panels of a data set, printed and as JSON."""
    panels = {
        kind: panel(kind, subset, {judge}, ("nominal", "ordinal"))
        for kind, subset in (("all verdicts", verdicts), ("decided", decided(verdicts)))
    }
    pairs, raters = ({verdict[column] for verdict in verdicts} for column in (0, 1))
    print(f"\n{name}: {len(verdicts)} verdicts on {len(pairs)} pairs by {len(raters)} raters")
    for panel_result in panels.values():
        show(panel_result)
    return {
        "verdicts": len(verdicts),
        **{kind: panel_result.as_dict() for kind, panel_result in panels.items()},
    }


def show(result: Panel) -> None:
    """One table."""
    print(
        f"\n| {result.kind} | compared | no crowd | the same | agreement, 95 % interval "
        "|\n|---|---|---|---|---|"
    )
    for metric, alpha in result.people.items():
        print(
            f"| all people, alpha ({metric}) | {alpha.units} | | {alpha.share:.3f} | "
            f"{figure(alpha.value, alpha.interval)} |"
        )
    experienced = [rater for rater in result.raters if rater.agreement.units >= SHOWN]
    for rater in sorted(experienced, key=lambda rater: -rater.agreement.units)[:SHOWN]:
        print(row(rater))
    values = sorted(
        rater.agreement.value for rater in experienced if rater.agreement.value is not None
    )
    if values:
        print(
            f"| median of the {len(values)} raters with {SHOWN} or more | | | | "
            f"{values[len(values) // 2]:.3f} |"
        )
    for judge in result.judges:
        print(row(judge, "judge "))


def row(rater: RaterAgreement, kind: str = "") -> str:
    """One rater against the crowd."""
    agreement = rater.agreement
    share = "" if agreement.share is None else f"{agreement.share:.3f}"
    return (
        f"| {kind}{rater.rater}, kappa | {agreement.units} | {rater.torn} | {share} | "
        f"{figure(agreement.value, agreement.interval)} |"
    )


def figure(value: float | None, interval: Any) -> str:
    """A coefficient with its interval."""
    ends = "" if interval is None else f", {interval.low:.3f} to {interval.high:.3f}"
    return "unknown" if value is None else f"{value:.3f}{ends}"


def main() -> None:
    """Measure both, print tables, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(parser, "agreement")
    path = parser.parse_args().json
    results = {
        "pandalm": measured("PandaLM", list(pandalm()), "gpt-3.5"),
        "llmfao": measured("llmfao", list(llmfao()), "gpt-4"),
    }
    raw.write(path, **results)


if __name__ == "__main__":
    main()
