"""The inbox: what the sdk acknowledged reaches the database, whoever writes, drains or is killed
meanwhile."""

from __future__ import annotations

import fcntl
import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

import thumbwheel
from tests.waiting import until
from thumbwheel.capture import inbox, store
from thumbwheel.capture.feedback import feedback_stats
from thumbwheel.capture.inbox import Drainer, drain_inbox
from thumbwheel.capture.ingest import ingest
from thumbwheel.capture.prepare import PreparedLines
from thumbwheel.capture.span_store import save_spans
from thumbwheel.capture.store import LineResult
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.dialects import Postgresql, Sqlite
from thumbwheel.db.engine import Database, writing
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.source import Row
from thumbwheel.sdk import spool as spool_line
from thumbwheel.sdk.segment import Segment

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
wait_until = partial(until, seconds=10.0)


@pytest.fixture
def inbox_ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
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


def append(ws: Workspace, *traces: str) -> None:
    """Spool traces of these names."""
    segment = Segment(ws.home.inbox)
    for name in traces:
        line = {"agent": "a", "type": "trace", "id": name, "input": "hi", "output": "ho"}
        segment.append(json.dumps(line).encode())
    segment.close()


def test_an_empty_inbox_says_nothing(inbox_ws: Workspace) -> None:
    assert drain_inbox(inbox_ws) == []


def test_traces_and_feedback_of_several_agents(inbox_ws: Workspace) -> None:
    for agent in ("one", "two"):
        answer = thumbwheel.trace(agent, input="hi", output="ho", id=f"t-{agent}")
        thumbwheel.feedback(agent, answer, thumb=True, rater="ann")
        thumbwheel.feedback(agent, answer, label="spam")
        thumbwheel.feedback(agent, answer, outcome=1.0)
        other = thumbwheel.trace(
            agent, input="hi", output="hm", model="m", steps=[{"kind": "tool", "name": "x"}]
        )
        thumbwheel.feedback(agent, [answer, other], preference=None)
    assert drain_inbox(inbox_ws) == ["inbox: 12 lines stored"]
    assert leftovers(inbox_ws) == []
    assert drain_inbox(inbox_ws) == []
    for agent in ("one", "two"):
        stats = feedback_stats(inbox_ws, agent)
        assert {name: signal.count for name, signal in stats.signals.items()} == {
            "thumb": 1,
            "label spam": 1,
            "outcome outcome": 1,
            "preference": 1,
        }
        assert stats.unresolved == 0


def test_lines_that_cannot_be_stored_are_kept_aside_and_said(inbox_ws: Workspace) -> None:
    thumbwheel.trace("a", input="hi", output="ho", id="t1")
    thumbwheel.trace("../a", input="hi", output="ho")
    thumbwheel.trace("a", input="hi", output="ho", mood="good")
    spool_line(
        "a",
        {"type": "feedback", "id": "f1", "target": {"trace": "t1"}, "kind": "rating", "value": 11},
    )
    (spool,) = inbox_ws.home.inbox.glob("spool-*")
    spool.write_bytes(spool.read_bytes() + b"\x00\x00\x00\n{torn")
    messages = drain_inbox(inbox_ws)
    assert messages[0] == "inbox: 1 lines stored"
    assert "5 lines cannot be stored" in messages[1]
    assert leftovers(inbox_ws) == ["rejected.jsonl"]
    rejected = [
        json.loads(line)
        for line in (inbox_ws.home.inbox / "rejected.jsonl").read_text().splitlines()
    ]
    assert {line["number"] for line in rejected} == {2, 3, 4, 5, 6}
    assert "killed in the middle" in rejected[-1]["reason"]
    assert any(
        "outside its scale" in line["reason"] and '"value": 11' in line["text"] for line in rejected
    )
    assert names(inbox_ws) == ["t1"]


def test_a_drain_that_is_killed_before_it_deletes_is_replayed(inbox_ws: Workspace) -> None:
    append(inbox_ws, *(f"t{i:03}" for i in range(700)))
    code = (
        "import os, pathlib, sys\n"
        "from thumbwheel.core.config import Home, Sources\nfrom thumbwheel.db.workspace import "
        "Workspace\n"
        "from thumbwheel.capture.inbox import drain_inbox\n"
        "pathlib.Path.unlink = lambda *a, **k: os.kill(os.getpid(), 9)\n"
        "with Workspace.open(Home.at(sys.argv[1]), Sources.read()) as ws: "
        "drain_inbox(ws)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(inbox_ws.home.path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(leftovers(inbox_ws)) == 1
    thumbwheel.trace("a", input="later", output="ho", id="u")
    assert drain_inbox(inbox_ws) == ["inbox: 1 lines stored, 700 were there already"]
    assert leftovers(inbox_ws) == []
    assert names(inbox_ws) == [*(f"t{i:03}" for i in range(700)), "u"]


def test_a_drain_that_is_killed_when_it_deletes_has_the_refused_lines_aside(
    inbox_ws: Workspace,
) -> None:
    """Killed after the file is gone, and nothing that comes later in the drain is done."""
    append(inbox_ws, "t1")
    (spool,) = inbox_ws.home.inbox.glob("spool-*")
    spool.write_bytes(spool.read_bytes() + b'{"agent": "a", "type": "no such"}\n')
    code = (
        "import os, pathlib, sys\n"
        "from thumbwheel.core.config import Home, Sources\n"
        "from thumbwheel.db.workspace import Workspace\n"
        "from thumbwheel.capture.inbox import drain_inbox\n"
        "delete = pathlib.Path.unlink\n"
        "pathlib.Path.unlink = lambda *a, **k: (delete(*a, **k), os.kill(os.getpid(), 9))\n"
        "with Workspace.open(Home.at(sys.argv[1]), Sources.read()) as ws: drain_inbox(ws)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(inbox_ws.home.path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert leftovers(inbox_ws) == ["rejected.jsonl"]
    (refused,) = (inbox_ws.home.inbox / "rejected.jsonl").read_text().splitlines()
    assert "no such" in json.loads(refused)["text"]
    assert names(inbox_ws) == ["t1"]


def test_writers_and_drains_at_once_lose_nothing(inbox_ws: Workspace) -> None:
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
        "with Workspace.open(Home.at(sys.argv[1]), Sources.read()) as ws:\n"
        "    for _ in range(40): drain_inbox(ws)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", writer, str(n)]) for n in range(3)]
    other = subprocess.Popen([sys.executable, "-c", drainer, str(inbox_ws.home.path)])
    while any(process.poll() is None for process in writers):
        drain_inbox(inbox_ws)
    assert [process.wait() for process in [*writers, other]] == [0] * 4
    drain_inbox(inbox_ws)
    assert names(inbox_ws) == [f"{n}-{i:03}" for n in range(3) for i in range(150)]
    assert names(inbox_ws, schema.feedback) == [
        f"f{n}-{i:03}" for n in range(3) for i in range(150)
    ]
    assert feedback_stats(inbox_ws, "a").unresolved == 0
    assert leftovers(inbox_ws) == []


def test_a_killed_writer_loses_only_what_was_not_acknowledged(inbox_ws: Workspace) -> None:
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
        drain_inbox(inbox_ws)
        assert set(acknowledged) <= set(names(inbox_ws))


def test_a_drainer_stores_what_comes_while_it_runs(inbox_ws: Workspace) -> None:
    with Drainer(inbox_ws, every=0.01) as drainer:
        assert (drainer.lag(), drainer.stands_still(), drainer.failure) == (0.0, False, None)
        answer = thumbwheel.trace("a", input="hi", output="ho", id="t1")
        wait_until(lambda: names(inbox_ws) == ["t1"])
        thumbwheel.feedback("a", answer, thumb=True)
        thumbwheel.trace("a", input="hi", output="ho", mood="good")
        wait_until(lambda: drainer.counts["stored"] == 2 and drainer.counts["refused"] == 1)
        wait_until(lambda: drainer.lag() == 0.0)
        thumbwheel.trace("a", input="hi", output="ho", id="t2")
    assert names(inbox_ws) == ["t1", "t2"]  # the end of the block drains the rest
    assert leftovers(inbox_ws) == ["rejected.jsonl"]
    assert drainer.stands_still()  # nobody drains any more


def test_a_drainer_links_feedback_to_the_trace_of_another_source(
    inbox_ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "LINK_EVERY", 0.05)
    file = tmp_path / "traces.jsonl"
    file.write_text('{"type": "trace", "id": "t1", "input": "hi", "output": "ho"}\n')
    ingest(inbox_ws, "a", "jsonl", file)
    with Drainer(inbox_ws, every=0.01):
        thumbwheel.feedback("a", "t1", thumb=True)
        wait_until(lambda: len(feedback_stats(inbox_ws, "a").signals) == 1)
        wait_until(lambda: feedback_stats(inbox_ws, "a").unresolved == 0)


def test_a_drainer_that_cannot_write_says_so_loses_nothing_and_goes_on(
    inbox_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "STANDSTILL", 0.3)
    monkeypatch.setattr(inbox, "RETRY", 0.05)
    assert isinstance(inbox_ws.db.backend, Sqlite | Postgresql)
    database = Database(replace(inbox_ws.db.backend, wait=0.1))
    impatient = replace(inbox_ws, db=database)
    with Drainer(impatient, every=0.01) as drainer:
        with writing(inbox_ws.db.backend) as engine, engine.begin():
            thumbwheel.trace("a", input="hi", output="ho", id="t1")
            wait_until(lambda: drainer.failure and drainer.stands_still())
            assert "another process is writing" in str(drainer.failure)
            assert drainer.lag() > 0.3
        wait_until(lambda: names(inbox_ws) == ["t1"])
        wait_until(lambda: not drainer.failure and not drainer.stands_still())
    database.close()


def test_a_drainer_that_is_behind_and_goes_on_does_not_stand_still(
    inbox_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = inbox.STANDSTILL + 60
    with Drainer(inbox_ws, every=0.01) as drainer:
        monkeypatch.setattr(drainer, "lag", lambda: waited)
        assert drainer.stands_still(), "lines wait, and none was ever stored"
        thumbwheel.trace("a", input="hi", output="ho", id="t1")
        wait_until(lambda: names(inbox_ws) == ["t1"])
        wait_until(lambda: not drainer.stands_still())
        monkeypatch.setattr(inbox, "STANDSTILL", 0.0)
        assert drainer.stands_still(), "and none was stored since"


def test_a_line_at_which_the_database_fails_holds_up_no_other(
    inbox_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_prepared = store.save_prepared

    def failing(connection: sa.Connection, prepared: PreparedLines) -> list[LineResult]:
        if any('"t3"' in candidate.line.text for candidate in prepared.candidates):
            raise RuntimeError("nobody foresaw this")
        return save_prepared(connection, prepared)

    monkeypatch.setattr(store, "save_prepared", failing)
    append(inbox_ws, *(f"t{number}" for number in range(6)))
    assert "1 lines cannot be stored" in drain_inbox(inbox_ws)[1]
    assert names(inbox_ws) == ["t0", "t1", "t2", "t4", "t5"]
    assert '"t3"' in json.loads((inbox_ws.home.inbox / "rejected.jsonl").read_text())["text"]


def test_a_span_at_which_the_database_fails_holds_up_no_other(
    inbox_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(connection: sa.Connection, agent_id: str, rows: Sequence[Row]) -> int:
        if any(row["span_id"] == f"{2:016x}" for row in rows):
            raise sa.exc.DataError("INSERT", {}, ValueError("planted"))
        return save_spans(connection, agent_id, rows)

    monkeypatch.setattr(inbox, "save_spans", failing)
    segment = Segment(inbox_ws.home.inbox)
    prompt = '[{"role": "user", "content": "Hi"}]'
    for number in range(1, 4):
        span = {
            "type": "span",
            "agent": "desk",
            "trace_id": f"{number:032x}",
            "span_id": f"{number:016x}",
            "attributes": {"gen_ai.operation.name": "chat", "gen_ai.input.messages": prompt},
        }
        segment.append(json.dumps(span).encode()).result()
    messages = drain_inbox(inbox_ws, everything=True)
    assert "1 lines cannot be stored" in messages[1] and "planted" in messages[1]
    assert names(inbox_ws) == [f"{1:032x}", f"{3:032x}"]
    assert leftovers(inbox_ws) == ["rejected.jsonl"]


def test_a_command_does_not_wait_for_ever_for_a_file_that_somebody_holds(
    inbox_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "PATIENCE", 0.05)
    append(inbox_ws, "t1")
    (path,) = inbox_ws.home.inbox.iterdir()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert drain_inbox(inbox_ws) == ["inbox: 1 files are being drained by another process"]
    assert drain_inbox(inbox_ws) == ["inbox: 1 lines stored"]


@pytest.mark.slow
@pytest.mark.sqlite  # its server is one of the file
def test_fifty_killed_apps_lose_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    kill = importlib.import_module("kill")
    report = kill.run(tmp_path, kills=50, apps=3, server_life=4.0, seed=1)
    assert report.kills == 50
    assert report.acknowledged > 100
    assert (report.missing, report.integrity) == (0, "ok")


def test_a_drainer_stops_in_time_and_loses_nothing(
    inbox_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "LAST", 0.0)
    segment = Segment(inbox_ws.home.inbox)
    row = {"type": "trace", "agent": "desk", "input": "Hi", "output": "Ho"}
    lines = [json.dumps({**row, "id": f"t{number}"}).encode() for number in range(3000)]
    with Drainer(inbox_ws, every=3600):
        segment.append_all(lines).result()
    segment.close()
    with inbox_ws.db.read() as connection:
        assert connection.execute(sa.select(sa.func.count(schema.traces.c.id))).scalar_one() == 0
    drain_inbox(inbox_ws)
    with inbox_ws.db.read() as connection:
        assert connection.execute(sa.select(sa.func.count(schema.traces.c.id))).scalar_one() == 3000
    assert list(inbox_ws.home.inbox.glob("*.jsonl")) == []
