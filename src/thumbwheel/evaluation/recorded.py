"""The side that only remembers: what the app's own model answered to the same prompts, as it was
recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thumbwheel.core import ids
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.types import Answer, Answers, Ask, Case, Known, Sums
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion


@dataclass
class Recorded:
    """See `side.Side`. A prompt that nobody answered has no answer, and neither has a request for
    several."""

    name: str
    identity: str
    known: Mapping[str, Answer]
    batch: int = 1000
    scores: bool = False

    def answers(self, asks: Sequence[Ask]) -> list[Answers]:
        """The recorded ones."""
        found = [
            self.known.get(ids.canonical(one.prompt)) if one.samples == 1 else None for one in asks
        ]
        return [() if one is None else (one,) for one in found]

    def log_probabilities(self, asks: Sequence[Known]) -> list[Sums]:
        """None are known."""
        return [()] * len(asks)

    def close(self) -> None:
        """There is nothing to let go of."""


def recorded(ws: Workspace, version: ModelVersion, name: str, cases: Sequence[Case]) -> Recorded:
    """The newest answer of `version` to the prompt of each case; one that does not say whose it is
    may be its own."""
    agent_id = versions.require_agent(ws, version.agent)
    with ws.db.read() as connection:
        found = store.recorded(connection, agent_id, version, {case.prompt_id for case in cases})
    known = {
        ids.canonical(case.prompt): found[case.prompt_id]
        for case in cases
        if case.prompt_id in found
    }
    return Recorded(
        name, ids.fingerprint(["recorded", {key: one.text for key, one in known.items()}]), known
    )
