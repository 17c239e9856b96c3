"""The inbox: what the sdk acknowledged reaches the database, whoever writes, drains or is killed
meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import thumbwheel
from thumbwheel.capture.feedback import feedback_stats
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk import spool as spool_line


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path))
    with Workspace.open(Home.at(tmp_path), Sources({}, "none", {})) as workspace:
        yield workspace


def names(ws: Workspace, table: sa.Table = schema.traces) -> list[str]:
    with ws.db.read() as connection:
        return list(
            connection.execute(
                sa.select(table.c.external_id).order_by(table.c.external_id)
            ).scalars()
        )


def leftovers(ws: Workspace) -> list[str]:
    return sorted(path.name for path in ws.home.inbox.iterdir())


def test_an_empty_inbox_says_nothing(ws: Workspace) -> None:
    assert drain_inbox(ws) == []


def test_traces_and_feedback_of_several_agents(ws: Workspace) -> None:
    for agent in ("one", "two"):
        answer = thumbwheel.trace(agent, input="hi", output="ho", id=f"t-{agent}")
        thumbwheel.feedback(agent, answer, thumb=True, rater="ann")
        thumbwheel.feedback(agent, answer, label="spam")
        thumbwheel.feedback(agent, answer, outcome=1.0)
        other = thumbwheel.trace(
            agent, input="hi", output="hm", model="m", steps=[{"kind": "tool", "name": "x"}]
        )
        thumbwheel.feedback(agent, [answer, other], preference=None)
    assert drain_inbox(ws) == ["inbox: 12 lines stored"]
    assert leftovers(ws) == []
    assert drain_inbox(ws) == []
    for agent in ("one", "two"):
        stats = feedback_stats(ws, agent)
        assert {name: signal.count for name, signal in stats.signals.items()} == {
            "thumb": 1,
            "label spam": 1,
            "outcome outcome": 1,
            "preference": 1,
        }
        assert stats.unresolved == 0


def test_lines_that_cannot_be_stored_are_kept_aside_and_said(ws: Workspace) -> None:
    thumbwheel.trace("a", input="hi", output="ho", id="t1")
    thumbwheel.trace("../a", input="hi", output="ho")
    thumbwheel.trace("a", input="hi", output="ho", mood="good")
    spool_line(
        "a",
        {"type": "feedback", "id": "f1", "target": {"trace": "t1"}, "kind": "rating", "value": 11},
    )
    spool = ws.home.inbox / "spool.jsonl"
    spool.write_bytes(spool.read_bytes() + b"\x00\x00\x00\n{torn")
    messages = drain_inbox(ws)
    assert messages[0] == "inbox: 1 lines stored"
    assert "5 lines cannot be stored" in messages[1]
    assert leftovers(ws) == ["rejected.jsonl"]
    rejected = [
        json.loads(line) for line in (ws.home.inbox / "rejected.jsonl").read_text().splitlines()
    ]
    assert {line["number"] for line in rejected} == {2, 3, 4, 5, 6}
    assert any(
        "outside its scale" in line["reason"] and '"value": 11' in line["text"] for line in rejected
    )
    assert names(ws) == ["t1"]


def test_a_drain_that_is_killed_before_it_deletes_is_replayed(ws: Workspace) -> None:
    for i in range(700):
        thumbwheel.trace("a", input=f"hi {i}", output="ho", id=f"t{i:03}")
    code = (
        "import os, pathlib, sys\n"
        "from thumbwheel.core.config import Home, Sources\nfrom thumbwheel.db.workspace import "
        "Workspace\n"
        "from thumbwheel.capture.inbox import drain_inbox\n"
        "pathlib.Path.unlink = lambda *a, **k: os.kill(os.getpid(), 9)\n"
        "with Workspace.open(Home.at(sys.argv[1]), Sources({}, 'none', {})) as ws: "
        "drain_inbox(ws)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(ws.home.path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(leftovers(ws)) == 1
    thumbwheel.trace("a", input="later", output="ho", id="u")
    assert sorted(drain_inbox(ws)) == [
        "inbox: 0 lines stored, 700 were there already",
        "inbox: 1 lines stored",
    ]
    assert leftovers(ws) == []
    assert names(ws) == [*(f"t{i:03}" for i in range(700)), "u"]


def test_writers_and_drains_at_once_lose_nothing(ws: Workspace) -> None:
    writer = (
        "import sys, thumbwheel\n"
        "for i in range(150):\n"
        "    name = thumbwheel.trace('a', input=f'hi {i}', output='ho', "
        "id=f'{sys.argv[1]}-{i:03}')\n"
        "    thumbwheel.feedback('a', name, thumb=True, id=f'f{sys.argv[1]}-{i:03}')\n"
    )
    drainer = (
        "import sys\nfrom thumbwheel.core.config import Home, Sources\nfrom "
        "thumbwheel.db.workspace import Workspace\n"
        "from thumbwheel.capture.inbox import drain_inbox\n"
        "with Workspace.open(Home.at(sys.argv[1]), Sources({}, 'none', {})) as ws:\n"
        "    for _ in range(40): drain_inbox(ws)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", writer, str(n)]) for n in range(3)]
    other = subprocess.Popen([sys.executable, "-c", drainer, str(ws.home.path)])
    while any(process.poll() is None for process in writers):
        drain_inbox(ws)
    assert [process.wait() for process in [*writers, other]] == [0] * 4
    drain_inbox(ws)
    assert names(ws) == [f"{n}-{i:03}" for n in range(3) for i in range(150)]
    assert names(ws, schema.feedback) == [f"f{n}-{i:03}" for n in range(3) for i in range(150)]
    assert feedback_stats(ws, "a").unresolved == 0
    assert leftovers(ws) == []


def test_a_killed_writer_loses_only_what_was_not_acknowledged(ws: Workspace) -> None:
    code = (
        "import thumbwheel, os\n"
        "for i in range(100000):\n"
        "    os.write(1, (thumbwheel.trace('a', input='x' * 20000, output='y', id=f't{i}') + "
        "'\\n').encode())\n"
    )
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout
        first = [child.stdout.readline() for _ in range(3)]
        child.send_signal(signal.SIGKILL)
        acknowledged = (b"".join(first) + child.stdout.read()).decode().split("\n")[:-1]
        child.wait()
        drain_inbox(ws)
        assert set(acknowledged) <= set(names(ws))
