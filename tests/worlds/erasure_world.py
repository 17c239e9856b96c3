"""People who talk with an agent and judge it, as lines of an import file; and a search of a whole
home for what one of them said.

Every person's texts, names and remarks hold a word of their own, so that finding it anywhere is
finding that person.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.schema import metadata
from thumbwheel.db.workspace import Workspace

AGENT = "support"
SYSTEM = {"role": "system", "content": "You answer in one short line."}


def word(person: int) -> str:
    return f"zq{person}xv"


def name(person: int) -> str:
    return f"person-{word(person)}"


def personal(person: int, text: str) -> str:
    return f"{text} {word(person)}"


def judged(
    person: int, key: str, trace: str, kind: str, value: Any, rater: str, **more: Any
) -> dict[str, Any]:
    target = {"target": {"trace": trace}, "occurred_at": "2026-01-05T10:01:00Z"}
    return {
        "type": "feedback",
        "id": f"{key}-{word(person)}",
        "kind": kind,
        "value": value,
        "rater": rater,
        **target,
        **more,
    }


def lines_of(person: int, turns: int = 2, common: bool = True) -> list[dict[str, Any]]:
    """A session of `turns`, each judged by its person and corrected by a reviewer, and a case made
    from the first question.

    Only the first turn names the person. With `common` they also say hello, as everybody does.
    """
    history: list[dict[str, Any]] = [SYSTEM]
    lines: list[dict[str, Any]] = []
    time = {"occurred_at": "2026-01-05T10:00:00Z"}
    for turn in range(turns):
        history = [
            *history,
            {"role": "user", "content": personal(person, f"How do I reset number {turn}?")},
        ]
        trace, answer = (
            f"t{turn}-{word(person)}",
            personal(person, f"Hold the button for {turn} seconds."),
        )
        of = {"subject": name(person)} if turn == 0 else {}
        lines.append(
            {
                "type": "trace",
                "id": trace,
                "session": f"s-{word(person)}",
                "input": history,
                "output": answer,
                **of,
                **time,
            }
        )
        remark = personal(person, "I did not like it, says")
        lines.append(
            judged(person, f"f{turn}", trace, "thumb", turn % 2 == 1, name(person), comment=remark)
        )
        lines.append(
            judged(
                person,
                f"c{turn}",
                trace,
                "correction",
                personal(person, f"Press {turn} times."),
                "reviewer",
            )
        )
        history = [*history, {"role": "assistant", "content": answer}]
    asked = [SYSTEM, {"role": "user", "content": personal(person, "How do I reset number 0?")}]
    reference = personal(person, "Press.")
    lines.append(
        {
            "type": "case",
            "id": f"case-{word(person)}",
            "input": asked,
            "reference": reference,
            "checker": "exact_answer",
        }
    )
    if common:
        hello = [SYSTEM, {"role": "user", "content": "Hello?"}]
        trace = f"h-{word(person)}"
        lines.append(
            {
                "type": "trace",
                "id": trace,
                "subject": name(person),
                "input": hello,
                "output": "Hello!",
                **time,
            }
        )
        lines.append(judged(person, "fh", trace, "thumb", True, name(person)))
    return lines


def write(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def find(home: Path, *needles: str) -> list[str]:
    """Files of `home` whose name, bytes or decoded columns contain one of `needles`."""
    import pyarrow.parquet as pq

    wanted = [needle.encode() for needle in needles]
    hits = []
    for path in sorted(path for path in home.rglob("*") if path.is_file()):
        raw = path.read_bytes()
        if raw[:4] == b"PAR1":
            raw += str(pq.read_table(path).to_pylist()).encode()
        if raw[:2] == b"\x1f\x8b":
            raw += gzip.decompress(raw)
        relative = path.relative_to(home).as_posix()
        if any(needle in raw or needle in relative.encode() for needle in wanted):
            hits.append(relative)
    return hits


def dump(ws: Workspace, *without: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table but those named."""
    with ws.db.read() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(sa.select(table))), key=repr)
            for table in metadata.sorted_tables
            if table.name not in without
        }
