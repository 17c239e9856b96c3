"""How the work of the server grows with what one app says: shapes of what a key may send, and the
processor time of every read and job that goes over it.

`python -m tests.attacks.growth [SHAPE ...] [--rows N]` measures every operation for each shape with
N rows, with twice and with four times as many, and prints those whose time grows too fast.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fastapi.testclient import TestClient

from tests.worlds.gateway_world import opened_home
from thumbwheel.access import keys
from thumbwheel.app.dialects import DIALECTS
from thumbwheel.capture import ingest
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.datasets.build import build
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.erase import erase
from thumbwheel.loop.quarantine import hold_bursts
from thumbwheel.loop.trigger_types import TriggerConfig
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent
from thumbwheel.rewards.judge_traces import judge_pending, judge_traces
from thumbwheel.server.serve import assembled

AGENT = "support"
URL = "http://127.0.0.1:8787"
RATIO = 2.6
"""At most so many times as much processor time takes twice as much."""
MEASURABLE = 0.15
"""Seconds of processor time above which a ratio says something."""
PIECE = 500
"""Rows of a request."""
NOON = "2026-11-20T12:00:00Z"
OF_THE_HOME = ("/", "/jobs", "/api/jobs", "/health", "/metrics")
"""Reads without an agent in their path that go over what is recorded."""
SESSION, SUBJECT = "s1", "u1"

Row = dict[str, Any]


@dataclass
class Statements:
    """What an app says: rows of `/api/traces` and of `/api/feedback`, and OpenTelemetry's spans."""

    traces: list[Row] = field(default_factory=list)
    feedback: list[Row] = field(default_factory=list)
    spans: list[Row] = field(default_factory=list)

    def answer(self, name: str, prompt: Any = "Hi", output: str | None = None, **more: Any) -> None:
        """Add a trace."""
        text = f"Answer {name}." if output is None else output
        row = {"id": name, "input": prompt, "output": text, "occurred_at": NOON}
        self.traces.append({**row, **more})

    def say(self, trace: str | None = None, **more: Any) -> None:
        """Add a statement, about a trace if it is given."""
        target = {} if trace is None else {"trace": trace}
        self.feedback.append({**target, "occurred_at": NOON, **more})


def one_prompt(n: int) -> Statements:
    """Return answers to one prompt, each with a thumb of another rater."""
    statements = Statements()
    for number in range(n // 2):
        statements.answer(f"t{number}", session=SESSION, subject=SUBJECT)
        statements.say(f"t{number}", thumb=number % 2 == 0, rater=f"r{number}")
    return statements


def one_rater(n: int) -> Statements:
    """Return thumbs of one rater on one trace."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    for number in range(n):
        statements.say("t0", id=f"f{number}", thumb=number % 2 == 0, rater="r")
    return statements


def many_raters(n: int) -> Statements:
    """Return ratings, thumbs and scores of as many raters on three traces."""
    statements = Statements()
    for trace in ("t0", "t1", "t2"):
        statements.answer(trace, subject=SUBJECT)
    for number in range(n):
        more = ({"thumb": number % 2 == 0}, {"rating": 1 + number % 5}, {"score": number / n})
        statements.say(f"t{number % 3}", rater=f"r{number // 3}", **more[number // 3 % 3])
    return statements


def pairs_of_raters(n: int) -> Statements:
    """Return ratings, of which every answer has two by raters who judge nothing else."""
    statements = Statements()
    for number in range(n // 3):
        statements.answer(f"t{number}", f"Question {number}?", subject=SUBJECT)
        for rater in range(2):
            statements.say(f"t{number}", rater=f"r{number} {rater}", score=(number + rater) / n)
    return statements


def session_words(n: int) -> Statements:
    """Return thumbs on a session, which has as many traces."""
    statements = Statements()
    for number in range(n // 2):
        statements.answer(f"t{number}", f"Question {number}?", session=SESSION, subject=SUBJECT)
        statements.say(session=SESSION, thumb=number % 2 == 0, rater=f"r{number}")
    return statements


def preferences(n: int) -> Statements:
    """Return comparisons in a circle of answers to one prompt."""
    statements = Statements()
    for number in range(n // 2):
        statements.answer(f"t{number}", subject=SUBJECT)
    for number in range(n // 2):
        targets = [{"trace": f"t{number}"}, {"trace": f"t{(number + 1) % (n // 2)}"}]
        statements.say(targets=targets, preference=0, rater=f"r{number % 7}")
    return statements


def preferences_of_two(n: int) -> Statements:
    """Return comparisons of the same two answers."""
    statements = Statements()
    for trace in ("t0", "t1"):
        statements.answer(trace, subject=SUBJECT)
    for number in range(n):
        targets = [{"trace": "t0"}, {"trace": "t1"}]
        statements.say(
            targets=targets, preference=number % 2, rater=f"r{number // 3}", id=f"f{number}"
        )
    return statements


def corrections(n: int) -> Statements:
    """Return corrections of one answer, all different."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    for number in range(n):
        statements.say("t0", correction=f"Better answer {number}.", rater=f"r{number}")
    return statements


def chain_of_corrections(n: int) -> Statements:
    """Return statements that replace each the one before, and at last are taken back."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    statements.say("t0", id="f0", thumb=True, rater="r")
    for number in range(1, n):
        statements.say("t0", id=f"f{number}", thumb=True, rater="r", supersedes=f"f{number - 1}")
    statements.say("t0", id="last", rater="r", retracts=f"f{n - 1}")
    return statements


def retractions(n: int) -> Statements:
    """Return statements that all take back the same one, or one that never comes."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    statements.say("t0", id="f0", thumb=True, rater="r")
    for number in range(1, n):
        name = "f0" if number % 2 else f"never {number}"
        statements.say("t0", id=f"f{number}", rater="r", retracts=name)
    return statements


def labels(n: int) -> Statements:
    """Return labels of one answer, each with another name and value, and comments."""
    statements = Statements()
    for number in range(10):
        statements.answer(f"t{number}", f"Question {number}?", subject=SUBJECT)
    for number in range(n):
        name, trace = f"name {number // 4}", f"t{number % 10}"
        statements.say(trace, kind="label", name=name, value=f"v{number}", rater=f"r{number}")
    return statements


def scores(n: int) -> Statements:
    """Return scores of one answer under different names."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    for number in range(n):
        statements.say("t0", kind="score", name=f"name {number}", value=number / n, rater="r")
    return statements


def outcomes(n: int) -> Statements:
    """Return outcomes of one session and comments on one trace."""
    statements = Statements()
    statements.answer("t0", session=SESSION, subject=SUBJECT)
    for number in range(n):
        statements.say(
            "t0", kind="outcome", name=f"name {number % 50}", value=number % 2 == 0, rater="r"
        )
        statements.say("t0", comment=f"word {number}", kind="comment", value=f"word {number}")
    return statements


def waiting_words(n: int) -> Statements:
    """Return statements about traces that never come."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    for number in range(n):
        statements.say(f"never {number}", thumb=True, rater=f"r{number}")
    return statements


def similar_prompts(n: int) -> Statements:
    """Return questions that differ in one word, each answered and liked."""
    statements = Statements()
    words = " ".join(f"word{number}" for number in range(60))
    for number in range(n // 2):
        statements.answer(f"t{number}", f"{words} {number}", f"{words} {number}", subject=SUBJECT)
        statements.say(f"t{number}", thumb=number % 3 > 0, rater="r")
    return statements


def shared_words(n: int) -> Statements:
    """Return questions of many words, of which every two share one."""
    statements = Statements()
    for number in range(n // 2):
        words = " ".join(f"w{number * step % 997}" for step in range(1, 40))
        statements.answer(f"t{number}", words, words, session=f"s{number // 2}", subject=SUBJECT)
        statements.say(f"t{number}", thumb=number % 2 > 0, rater="r")
    return statements


def long_texts(n: int) -> Statements:
    """Return texts of one character, as long as many."""
    statements = Statements()
    for number in range(20):
        letter = "a- .:@=xé\n_/\\<*`'\"{["[number]
        text = letter * (100 * n // 20)
        statements.answer(f"t{number}", f"{text}?", text, subject=SUBJECT)
        statements.say(f"t{number}", thumb=number % 2 > 0, rater="r")
        statements.say(f"t{number}", correction=f"{text}!", rater="r")
    return statements


def many_steps(n: int) -> Statements:
    """Return one trace with as many steps, and a tool's name each."""
    statements = Statements()
    steps = []
    for number in range(n):
        tool = {"kind": "tool", "name": f"tool {number}", "input": {"a": number}, "output": "x"}
        steps.append(tool if number % 2 else {"kind": "llm", "output": f"y{number}"})
    statements.answer("t0", steps=steps, subject=SUBJECT)
    statements.say("t0", thumb=True, rater="r")
    for number in range(0, n, 2):
        statements.say(step=["t0", number], thumb=True, rater=f"r{number}")
    return statements


def long_conversation(n: int) -> Statements:
    """Return one conversation of as many turns, which two traces have."""
    statements = Statements()
    roles = ("user", "assistant")
    turns = [{"role": roles[number % 2], "content": f"m{number}"} for number in range(2 * n + 1)]
    for number in range(2):
        statements.answer(f"t{number}", turns, subject=SUBJECT, session=SESSION)
        statements.say(f"t{number}", thumb=number == 0, rater="r")
    return statements


def nested_traces(n: int) -> Statements:
    """Return traces each of which is called by the one before, and as many called by the first."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    for number in range(1, n // 2):
        statements.answer(f"t{number}", parent=f"t{number - 1}")
        statements.answer(f"c{number}", parent="t0")
    statements.say("t0", thumb=True, rater="r")
    return statements


def many_subjects(n: int) -> Statements:
    """Return traces of as many subjects, sessions and raters, with a tag each."""
    statements = Statements()
    statements.answer("t", subject=SUBJECT)
    for number in range(n // 2):
        names = {"session": f"s{number}", "subject": f"u{number + 2}"}
        metadata = {"tags": [f"tag {number}"], f"key {number}": number}
        statements.answer(f"t{number}", f"Question {number}?", metadata=metadata, **names)
        statements.say(f"t{number}", thumb=number % 2 == 0, rater=f"r{number}")
    return statements


def many_tags(n: int) -> Statements:
    """Return one trace with as many tags and keys, and deep values."""
    statements = Statements()
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    metadata = {f"key {number}": [deep, number] for number in range(n // 20)}
    metadata["tags"] = [f"tag {number}" for number in range(n)]
    statements.answer("t0", metadata=metadata, subject=SUBJECT)
    statements.say("t0", thumb=True, rater="r", metadata=metadata)
    return statements


def same_trace(n: int) -> Statements:
    """Return one trace that is sent as many times."""
    statements = Statements()
    for number in range(n):
        statements.answer("t0", output=f"Answer {number // 2}.", subject=SUBJECT)
    statements.say("t0", thumb=True, rater="r")
    return statements


def _span(number: int, trace: str, parent: str | None, **attributes: Any) -> Row:
    names = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **attributes}
    values = [{"key": key, "value": {"stringValue": str(value)}} for key, value in names.items()]
    times = {"startTimeUnixNano": str(10**18 + number), "endTimeUnixNano": str(10**18 + number + 1)}
    row = {"traceId": trace, "spanId": f"{number + 1:016x}", "name": "chat", "kind": 3, **times}
    return {**row, "attributes": values, **({"parentSpanId": parent} if parent else {})}


def spans_of_one_run(n: int) -> Statements:
    """Return spans of one run, each below the one before."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    for number in range(n):
        parent = f"{number:016x}" if number else None
        statements.spans.append(_span(number, "ab" * 16, parent))
    return statements


def spans_without_parents(n: int) -> Statements:
    """Return spans of one run whose parents never come."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    for number in range(n):
        statements.spans.append(_span(number, "ab" * 16, f"{number + 10**9:016x}"))
    return statements


def agents_in_spans(n: int) -> Statements:
    """Return spans of agents each of which calls the next one."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.prompt": "Hi"}
    for number in range(n // 2):
        parent = f"{2 * number - 1:016x}" if number else None
        statements.spans.append(_span(2 * number, "ab" * 16, parent, **agent))
        statements.spans.append(_span(2 * number + 1, "ab" * 16, f"{2 * number + 1:016x}"))
    return statements


def many_sources(n: int) -> Statements:
    """Return traces of as many sources, and statements about traces that never come."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    for number in range(n // 2):
        statements.answer(f"t{number}", source=f"source {number}")
        statements.say("never" if number % 2 else f"never {number}", thumb=True, rater="r")
    return statements


def spans_of_many_runs(n: int) -> Statements:
    """Return runs of one span each, in one session."""
    statements = Statements()
    statements.answer("t0", subject=SUBJECT)
    for number in range(n):
        session = {"gen_ai.conversation.id": "s1"}
        statements.spans.append(_span(number, f"{number + 1:032x}", None, **session))
    return statements


SHAPES_OF_WORDS: Mapping[str, Callable[[int], Statements]] = {
    shape.__name__: shape
    for shape in (
        one_prompt,
        one_rater,
        many_raters,
        pairs_of_raters,
        session_words,
        preferences,
        preferences_of_two,
        corrections,
        chain_of_corrections,
        retractions,
        labels,
        scores,
        outcomes,
        waiting_words,
        similar_prompts,
        shared_words,
        long_texts,
        many_steps,
        long_conversation,
        nested_traces,
        many_subjects,
        many_tags,
        same_trace,
        spans_of_one_run,
        spans_without_parents,
        agents_in_spans,
        many_sources,
        spans_of_many_runs,
    )
}


@dataclass
class Attacked:
    """A server to which one app has statements something."""

    ws: Workspace
    app: TestClient
    owner: TestClient
    paths: Sequence[str]
    """Of all reads, with placeholders."""

    def send(self, statements: Statements) -> None:
        """Send everything, in requests of many rows."""
        for path, rows in (("traces", statements.traces), ("feedback", statements.feedback)):
            for start in range(0, len(rows), PIECE):
                piece = "".join(json.dumps(row) + "\n" for row in rows[start : start + PIECE])
                headers = {"content-type": "application/x-ndjson"}
                reply = self.app.post(f"/a/{AGENT}/api/{path}", content=piece, headers=headers)
                assert reply.status_code == 202, reply.text[:500]
                assert "refused" not in reply.json(), reply.text[:500]
        for start in range(0, len(statements.spans), PIECE):
            spans = statements.spans[start : start + PIECE]
            body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
            reply = self.app.post(f"/a/{AGENT}/v1/traces", json=body)
            assert reply.status_code == 200, reply.text[:500]

    def operations(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield (name, what is to be measured), in an order in which each finds what it needs; the
        erasure is the last."""
        agent = Agent.named(AGENT)
        yield "drain", lambda: drain_inbox(self.ws, everything=True)
        yield "drain again", lambda: drain_inbox(self.ws, everything=True)
        yield "rewards", lambda: judge_traces(self.ws, AGENT)
        yield "rewards pending", lambda: judge_pending(self.ws, AGENT)
        bursts = TriggerConfig()
        later = datetime(2026, 11, 20, 13, tzinfo=UTC) + timedelta(hours=0)
        yield "bursts", lambda: hold_bursts(self.ws, agent, bursts, later)
        for shape in SHAPES.names():
            yield f"build {shape}", lambda shape=shape: self._build(shape)
        yield "loop check", lambda: self._post("loop/checks", {})
        yield "queue create", lambda: self._post("queues", {"name": "q", "overlap": 2})
        for rater in ("ann", "bob"):
            yield f"queue next {rater}", lambda rater=rater: self._rate("q", rater)
        yield "label suggest", lambda: self._post("labels/suggestions", {})
        yield "label learn", lambda: self._post("labels/classifier", {})
        for path in self.paths:
            yield f"GET {path}", lambda path=path: self._get(path)
        for query in ("text=answer", "feedback=true", f"session={SESSION}", f"subject={SUBJECT}"):
            path = f"/api/agents/{AGENT}/traces?{query}&limit=100"
            yield f"GET {path}", lambda path=path: self.owner.get(path)
        dry = f"/api/agents/{AGENT}/subjects/{SUBJECT}?dry_run=true"
        yield "erase dry", lambda: self.owner.delete(dry)
        yield "erase", lambda: erase(self.ws, agent, SUBJECT)

    def _post(self, path: str, body: Row) -> object:
        return self.owner.post(f"/api/agents/{AGENT}/{path}", json=body)

    def _rate(self, queue: str, rater: str) -> None:
        below = f"queues/{queue}"
        items = self._post(f"{below}/next", {"rater": rater, "limit": 5}).json()  # type: ignore[attr-defined]
        for number, item in enumerate(items.get("items", [])):
            verdict = {"rater": rater, "key": f"{rater} {number}", "thumb": "up"}
            self._post(f"{below}/items/{item['id']}/rating", verdict)

    def _build(self, shape: str) -> None:
        with suppress(ThumbwheelError):  # there may be too little of it
            build(self.ws, AGENT, shape, DatasetConfig())

    def _get(self, path: str) -> object:
        names = {"agent": AGENT, "queue": "q", "name": "latest", "dataset": "latest"}
        names |= {"trace": "t0", "version": "v0", "subject": SUBJECT, "id": "f0"}
        for name, value in names.items():
            path = path.replace("{" + name + "}", value)
        if "{" in path:
            return None
        return self.owner.get(path)


def read_paths(application: Any) -> list[str]:
    """Return the paths of all reads and pages that go over an agent's data, or that of the home."""
    paths = []
    for route in application.api.routes:
        path = getattr(route, "path", "")
        is_read = "GET" in (getattr(route, "methods", None) or ())
        if (is_read and "{agent}" in path) or path in OF_THE_HOME:
            paths.append(path)
    return sorted(set(paths))


@contextmanager
def attacked(folder: Path) -> Iterator[Attacked]:
    """A server with all dialects, and the key of an app."""
    with opened_home(folder / "home") as ws:
        ensure_agent(ws, AGENT)
        secret = keys.add(ws, "app", agents=[AGENT]).secret
        with assembled(ws, "127.0.0.1", drain_every=3600, dialects=DIALECTS.names()) as application:
            app = TestClient(application, base_url=URL, raise_server_exceptions=False)
            app.headers["authorization"] = f"Bearer {secret}"
            owner = TestClient(application, base_url=URL, raise_server_exceptions=False)
            token = ws.home.access_token.read_text().strip()
            owner.headers["authorization"] = f"Bearer {token}"
            yield Attacked(ws, app, owner, read_paths(application))


def processor_seconds() -> float:
    """Return what this process and its children that ended used of the processor."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@dataclass(frozen=True)
class Growth:
    """The processor time of an operation over N rows, twice and four times as many."""

    operation: str
    seconds: tuple[float, float, float]

    @property
    def is_hole(self) -> bool:
        """Whether it grows too fast, over both doublings: a busy machine makes one of them
        longer."""
        first, second, third = self.seconds
        is_fast = third > RATIO * second and third > 2 * RATIO * first
        return is_fast and third > MEASURABLE

    def __str__(self) -> str:
        figures = " ".join(f"{seconds:8.3f}" for seconds in self.seconds)
        return f"{figures}  {self.operation}"


def growths(shape: Callable[[int], Statements], n: int, folder: Path) -> list[Growth]:
    """Return how the time of every operation grows from `n` rows on."""
    sizes = [times(shape, n * factor, folder / str(factor)) for factor in (1, 2, 4)]
    once, twice, four_times = sizes
    return [
        Growth(operation, (once.get(operation, 0.0), twice.get(operation, 0.0), seconds))
        for operation, seconds in four_times.items()
    ]


def times(shape: Callable[[int], Statements], n: int, folder: Path) -> dict[str, float]:
    """Return operation -> its processor time over so many rows."""
    seconds: dict[str, float] = {}
    statements = shape(n)
    # a piece has the same number of lines, however busy the machine is
    with attacked(folder) as server, patch.object(ingest._PACE, "adapt"):
        began = processor_seconds()
        server.send(statements)
        seconds["send"] = processor_seconds() - began
        for name, run in server.operations():
            began = processor_seconds()
            run()
            seconds[name] = processor_seconds() - began
    return seconds


def main(arguments: Sequence[str]) -> None:
    """Print what grows too fast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES_OF_WORDS))
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--all", action="store_true", help="print also what grows as it should")
    options = parser.parse_args(arguments)
    for name in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            measured = growths(SHAPES_OF_WORDS[name], options.rows, Path(folder))
        for growth in measured:
            if growth.is_hole or options.all:
                print(f"{'HOLE' if growth.is_hole else '    '} {name:22} {growth}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
