"""Questions are asked in chunks; progress says how many are under way, for a chunk takes long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.worlds.gateway_world import AGENT, opened_home
from thumbwheel.core import log
from thumbwheel.evaluation.responder import ask
from thumbwheel.evaluation.types import Answers, Ask, AskLikelihood, ModelAnswer, Sums
from thumbwheel.models.versions import ensure_agent


class ProgressSink:
    """Keeps what is said while the work goes on."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, str]] = []

    def line(self, text: str) -> None:
        """Ignore lines."""

    def progress(self, what: str, done: float, total: float | None, unit: str, note: str) -> None:
        self.reports.append((done, note))


class Echo:
    """A responder that answers with the question, two at once."""

    name, identity, batch, scores = "v0", "echo", 2, False

    def __init__(self, sink: ProgressSink) -> None:
        self.sink = sink
        self.seen: list[tuple[float, str]] = []

    def recipe(self) -> dict[str, Any] | None:
        return None

    def answers(self, asks: Sequence[Ask]) -> list[Answers]:
        self.seen.append(self.sink.reports[-1])
        return [(ModelAnswer(str(question.prompt), "stop", 3),) for question in asks]

    def log_probabilities(self, asks: Sequence[AskLikelihood]) -> list[Sums]:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


def test_progress_says_how_many_are_asked_at_once(tmp_path: Path) -> None:
    with opened_home(tmp_path / "home") as ws:
        agent_id = ensure_agent(ws, AGENT)
        asks = [Ask([{"role": "user", "content": f"question {n}"}], 8) for n in range(5)]
        sink = ProgressSink()
        echo = Echo(sink)
        with log.sent_to(sink):
            replies = ask(ws, agent_id, echo, asks, "answers")
        assert [reply.text for (reply,) in replies] == [str(question.prompt) for question in asks]
        assert echo.seen == [
            (0, "asking 2 at once"),
            (2, "asking 2 at once"),
            (4, "asking 1 at once"),
        ]
