"""An agent with approved versions over a tiny base, and how it is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from tests.approvals import approve
from tests.models.tiny_models import tuned_version
from thumbwheel.db.schema import model_versions
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import switch
from thumbwheel.deploy.serve import application
from thumbwheel.deploy.switch import DeployResult
from thumbwheel.models import versions
from thumbwheel.models.types import Basis, ModelVersion

QUESTION = [{"role": "user", "content": "Hello"}]


@dataclass
class World:
    ws: Workspace
    base: Path
    adapters: list[Path]
    agent: str
    door: TestClient = field(init=False)

    def __post_init__(self) -> None:
        self.door = TestClient(
            application(self.ws, self.agent),
            base_url="http://127.0.0.1",
            raise_server_exceptions=False,
        )

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
        named = version if isinstance(version, str) else version.name
        return switch.deploy(self.ws, self.agent, named, target, alias, settings=settings, **more)

    def ask(self, model: str | None = None, **more: Any) -> Any:
        named = {"model": model} if model else {}
        return self.door.post(
            "/v1/chat/completions",
            json={"messages": QUESTION, "max_tokens": 6, "temperature": 0, **named, **more},
        )

    def text(self, model: str | None = None) -> str:
        reply = self.ask(model)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["message"]["content"])

    def live(self) -> str | None:
        """The version behind the alias live."""
        version_id = versions.aliases_of(self.ws, self.agent).get("live")
        return None if version_id is None else versions.by_id(self.ws, version_id).name

    def taint(self, version: ModelVersion) -> None:
        self.ws.db.write(
            lambda c: c.execute(
                model_versions.update()
                .where(model_versions.c.id == version.id)
                .values(tainted=True)
            )
        )
