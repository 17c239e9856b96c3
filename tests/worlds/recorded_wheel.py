"""The wheel without the cost of models: a version is a table of answers.

Training reads the dataset that the product builds, and keeps for each topic the answer with most
votes. Evaluation asks the table. Serving is a deployment that answers from it. No report is drawn.
Plan, dataset, run, version, evaluation, gate, deployment record, alias, experiment and loop are the
shipped code, so feedback that should not be learned from spoils these tables as it would spoil
weights. A cycle may be trained for real instead: then the answers of the trained model are recorded
into its table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from thumbwheel.core import ids
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import deploy as deploying
from thumbwheel.deploy import prepare
from thumbwheel.deploy import store as deployment_store
from thumbwheel.deploy.canary import Canary
from thumbwheel.deploy.routing import by_id
from thumbwheel.deploy.switch import promote
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import (
    CanaryVerdict,
    DeploymentState,
    Endpoint,
    Health,
    TargetConfig,
)
from thumbwheel.evaluation import dev, responders
from thumbwheel.evaluation.local_model import LocalModel
from thumbwheel.evaluation.types import (
    Answers,
    Ask,
    AskLikelihood,
    EvaluationConfig,
    ModelAnswer,
    Sums,
)
from thumbwheel.loop import cycle
from thumbwheel.models import versions
from thumbwheel.models.base import Base
from thumbwheel.models.types import Agent, ModelVersion
from thumbwheel.training import store as run_store
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.train import find_run
from thumbwheel.training.types import Run, RunResult, RunState

FILE = "answers.json"
TARGET = "recorded"
URL = "http://127.0.0.1:9/v1"
SURE, UNSURE = -0.02, -1.5
"""Nats a token of the answer that the table has, and of any other."""
NO_ANSWER = "I do not know."
Table = Mapping[str, str]
"""Topic, the first word of a prompt -> answer."""


def topic_of(prompt: Sequence[Mapping[str, Any]]) -> str:
    """The first word of the last message."""
    words = str(prompt[-1]["content"]).split()
    return words[0] if words else ""


@dataclass
class Wheel:
    """`trains_really`: the next trainings are real ones. `served_instead`: what the next trained
    versions answer once they are served, whatever they answered when they were evaluated, as where
    a template or a precision is lost on the way."""

    trains_really: bool = False
    served_instead: Table | None = None

    def served_table(self, ws: Workspace, version: ModelVersion) -> Table:
        """The answers that users of a version get."""
        path = self._served_path(ws, version)
        return _table_in(path) if path.exists() else self.table(ws, version)

    def is_served_otherwise(self, ws: Workspace, version: ModelVersion) -> bool:
        """Return whether users of a version get other answers than its evaluation."""
        return self._served_path(ws, version).exists()

    def _served_path(self, ws: Workspace, version: ModelVersion) -> Path:
        return ws.home.path / "answers" / f"{version.id}.served.json"

    def table(self, ws: Workspace, version: ModelVersion) -> Table:
        """The answers of a version."""
        if version.adapter is None:
            path = Path(version.base) / FILE
        else:
            path = ws.home.path / "answers" / f"{version.id}.json"
        return _table_in(path)

    def _keep(self, ws: Workspace, version: ModelVersion, table: Table) -> None:
        path = ws.home.path / "answers" / f"{version.id}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dict(sorted(table.items()))), encoding="utf-8")
        if self.served_instead is not None:
            served = json.dumps(dict(self.served_instead))
            self._served_path(ws, version).write_text(served, encoding="utf-8")

    def train(self, ws: Workspace, agent: Agent, method: str, base: Base, run_id: str) -> RunResult:
        """In place of the verb `train`."""
        if self.trains_really:
            return self._train_really(ws, agent, method, base, run_id)
        config = ws.settings(DatasetConfig, "dataset")
        dataset = build(ws, agent.slug, ALGORITHMS.get(method).needs, config)
        parent = versions.ensure_base(ws, agent.slug, base.name, base.fingerprint)
        values = {
            "id": run_id,
            "agent_id": agent.id,
            "algorithm": method,
            "dataset_id": dataset.id,
            "base": base.name,
            "base_fingerprint": base.fingerprint,
            "config": {},
            "environment": {},
            "seed": 0,
        }
        ws.db.write(lambda connection: run_store.add(connection, values))
        return self._finish(ws, run_id, parent)

    def resume(self, ws: Workspace, run: Run) -> RunResult:
        """In place of the verb `resume`: a training that was killed begins anew under its id."""
        parent = versions.ensure_base(ws, run.agent, run.base, run.base_fingerprint)
        return self._finish(ws, run.id, parent)

    def _finish(self, ws: Workspace, run_id: str, parent: ModelVersion) -> RunResult:
        run = find_run(ws, run_id)
        rows = list(load_rows(ws, str(run.dataset_id), "train"))
        table = learned(self.table(ws, parent), rows)
        folder = ws.home.runs / run_id / "adapter"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_model.safetensors").write_text(
            json.dumps([run_id, dict(sorted(table.items()))]), encoding="utf-8"
        )
        version = versions.add_candidate(ws, parent, run_id, folder)
        self._keep(ws, version, table)
        ws.db.write(
            lambda connection: run_store.end(connection, run_id, RunState.FINISHED, None, {})
        )
        return RunResult(run_id, RunState.FINISHED, None, {}, version.id, version.name)

    def _train_really(
        self, ws: Workspace, agent: Agent, method: str, base: Base, run_id: str
    ) -> RunResult:
        from thumbwheel.training.train import train

        result = train(ws, agent, method, base, run_id=run_id)
        if result.version is None:
            return result
        version = versions.version(ws, agent.slug, result.version)
        config = ws.settings(EvaluationConfig, "evaluation")
        parent = responders.base_of(ws, version)
        topics = sorted(self.table(ws, parent))
        asks = [Ask([{"role": "user", "content": f"{topic} 7"}], 14) for topic in topics]
        replies = LocalModel(ws, parent, [version], config).responder(version).answers(asks)
        table = {
            topic: answers[0].text.strip() for topic, answers in zip(topics, replies, strict=True)
        }
        self._keep(ws, version, table)
        return result

    def deploy(
        self,
        ws: Workspace,
        version: ModelVersion,
        target: str,
        alias: str,
        **_: Any,
    ) -> deploying.DeployResult:
        """In place of the verb `deploy`: no file is written and no server started; who may be
        served, and the switch of the alias, are checked as always."""
        prepare.require_servable(ws, version, alias)
        name = f"{version.agent}-{version.name}"
        deployment_id = ws.db.write(
            lambda connection: deployment_store.insert(connection, version, None, target, name, {})
        )
        canary = Canary(CanaryVerdict.UNOPPOSED, (), 0, 0)
        deployment = by_id(ws, deployment_id)
        ws.db.write(
            lambda connection: deployment_store.set_state(
                connection,
                ws.home,
                deployment,
                DeploymentState.WARM,
                Endpoint(URL, version.name),
                canary.to_json(),
            )
        )
        deployment = by_id(ws, deployment_id)
        switch = promote(ws, version, alias, reason="deployed", deployment=deployment)
        return deploying.DeployResult(deployment, canary, switch)


def _table_in(path: Path) -> Table:
    content: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return content


def learned(start: Table, rows: Sequence[Any]) -> dict[str, str]:
    """For each topic the answer with the largest sum of weighted votes of the training rows, where
    that is positive; else what the base says."""
    votes: dict[str, Counter[str]] = {}
    for row in rows:
        weight = row.weight if row.label else -row.weight
        votes.setdefault(topic_of(row.prompt), Counter())[row.completion] += weight
    table = dict(start)
    for topic, sums in votes.items():
        best = max(sorted(sums), key=lambda text: sums[text])
        if sums[best] > 0:
            table[topic] = best
    return table


class _Tokenizer:
    def __len__(self) -> int:
        return 400


class _Builder:
    tokenizer = _Tokenizer()
    template_hash = "recorded"

    def prompt(self, prompt: Any, *_: Any) -> Any:
        return prompt


@dataclass
class RecordedModel:
    """In place of `LocalModel`; `wheel` knows the tables."""

    wheel: Wheel
    ws: Workspace
    base: ModelVersion
    versions: Sequence[ModelVersion]
    config: EvaluationConfig
    builder = _Builder()

    def responder(self, version: ModelVersion) -> RecordedTable:
        table = self.wheel.table(self.ws, version)
        return RecordedTable(version.name, ids.fingerprint(["table", table]), table)


@dataclass
class RecordedTable:
    """A responder that answers from a table."""

    name: str
    identity: str
    table: Table
    batch: int = 1000
    scores: bool = True

    def recipe(self) -> dict[str, Any] | None:
        return None

    def answers(self, asks: Sequence[Ask]) -> list[Answers]:
        replies: list[Answers] = []
        for ask in asks:
            text = self.table.get(topic_of(ask.prompt), NO_ANSWER)
            replies.append((ModelAnswer(text, "stop", tokens=_tokens(text)),) * ask.samples)
        return replies

    def log_probabilities(self, asks: Sequence[AskLikelihood]) -> list[Sums]:
        replies: list[Sums] = []
        for ask in asks:
            expected = self.table.get(topic_of(ask.prompt)) if ask.prompt else None
            sums = []
            for text in ask.texts:
                rate = SURE if text == expected else UNSURE
                sums.append((rate * _tokens(text), _tokens(text)))
            replies.append(tuple(sums))
        return replies

    def close(self) -> None:
        """Nothing to close."""


def _tokens(text: str) -> int:
    return len(text) // 3 + 1


class RecordedTarget:
    """A target without a server: the simulation answers."""

    Config = TargetConfig
    kinds = ()
    named = False

    def check(self, settings: TargetConfig) -> None:
        """Nothing has to run."""

    def health(self, endpoint: Endpoint) -> Health:
        return Health(True)

    def remove(self, endpoint: Endpoint) -> None:
        """Nothing runs."""

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """The gateway resolves aliases."""

    def secret(self, endpoint: Endpoint) -> str | None:
        return None


RECORDED_TARGET = RecordedTarget()


@contextmanager
def recorded_wheel() -> Iterator[Wheel]:
    """Inside the block turns of the wheel train, answer and serve by tables."""
    wheel = Wheel()

    def model(
        ws: Workspace,
        base: ModelVersion,
        adapted: Sequence[ModelVersion],
        config: EvaluationConfig,
    ) -> RecordedModel:
        return RecordedModel(wheel, ws, base, adapted, config)

    located = {**TARGETS.locations, TARGET: f"{__name__}:RECORDED_TARGET"}
    with (
        patch.object(cycle, "train", wheel.train),
        patch.object(cycle, "resume", wheel.resume),
        patch.object(cycle, "deploy", wheel.deploy),
        patch.object(cycle, "report", lambda *_: None),
        patch.object(responders, "LocalModel", model),
        patch.object(dev, "LocalModel", model),
        patch.object(TARGETS, "locations", located),
    ):
        yield wheel
