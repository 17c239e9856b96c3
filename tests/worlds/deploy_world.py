"""An agent with approved versions over a tiny base, and how it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.approvals import approve
from tests.models.tiny_models import tuned_version
from tests.worlds.gateway_world import CHAT, running
from thumbwheel.db.schema import model_versions
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import deploy
from thumbwheel.deploy.deploy import DeployResult
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, Basis, ModelVersion

QUESTION = [{"role": "user", "content": "Hello"}]


@dataclass
class DeployWorld:
    ws: Workspace
    base: Path
    adapters: list[Path]
    agent: str

    @property
    def learner(self) -> Agent:
        return Agent.named(self.agent)

    def find(self, name: str) -> ModelVersion:
        return versions.version(self.ws, self.agent, name)

    def version(
        self, adapter: int, basis: Basis | None = Basis.GOLD, base: Path | None = None
    ) -> ModelVersion:
        version = tuned_version(self.ws, base or self.base, self.adapters[adapter], self.agent)
        return approve(self.ws, version, basis) if basis else version

    def deploy(
        self,
        version: ModelVersion | str,
        alias: str | None = "live",
        target: str = "embedded",
        **more: Any,
    ) -> DeployResult:
        settings = (
            {"threads": 1}
            if target == "embedded"
            else {"threads": 1, "context": 128, "parallel": 1}
        )
        named = self.find(version) if isinstance(version, str) else version
        return deploy.deploy(self.ws, named, target, alias, settings=settings, **more)

    @contextmanager
    def served(self) -> Iterator[httpx2.Client]:
        """A client of the server of this home."""
        with running(self.ws) as gateway:
            yield gateway.client

    def ask(self, model: str | None = None, **more: Any) -> Any:
        """The response of a server that is started for it."""
        with self.served() as client:
            return client.post(CHAT, json=self.question(model, **more))

    def question(self, model: str | None = None, **more: Any) -> dict[str, Any]:
        """A short question to the agent, or to another model."""
        named = {"model": model or self.agent}
        return {"messages": QUESTION, "max_tokens": 6, "temperature": 0, **named, **more}

    def text(self, model: str | None = None) -> str:
        reply = self.ask(model)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["message"]["content"])

    def live(self) -> str | None:
        """The version behind the alias live."""
        version_id = versions.aliases_of(self.ws, self.learner).get("live")
        return None if version_id is None else versions.by_id(self.ws, version_id).name

    def taint(self, version: ModelVersion) -> None:
        self.ws.db.write(
            lambda c: c.execute(
                model_versions.update()
                .where(model_versions.c.id == version.id)
                .values(tainted=True)
            )
        )
