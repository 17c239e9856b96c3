"""The types of this stage: packages, endpoints, health, and deployments with their states and the
legal moves between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.core.errors import Conflict
from thumbwheel.export.types import ModelKind
from thumbwheel.llm.port import HOST
from thumbwheel.models.template_settings import TemplateSettings
from thumbwheel.models.types import LIVE, Switch

ENDPOINT = ModelKind("endpoint")
"""No files: somebody else serves the model."""


@dataclass(frozen=True)
class Package:
    """A version in a form that a target takes. `files`: relative name in `folder` -> sha256; all
    exist and are verified."""

    agent: str
    version: str
    name: str
    """The model's name on the target: `support-v3`."""
    kind: ModelKind
    folder: Path
    files: Mapping[str, str]
    base: Path
    """Of an adapter the base, as a folder or a GGUF file; of a whole model its own folder."""
    base_fingerprint: str | None
    """Of an adapter's base, and of a base that is served as it is; None for a model that was
    merged."""
    tokenizer: Path
    """Folder with the tokenizer and the chat template that training used."""
    state_folder: Path
    """Folder in the home where the target keeps records, logs and generated files, by which it
    finds its processes again."""
    export_id: str | None = None
    stops: tuple[str, ...] = ()
    """Texts of the tokens that end an answer."""
    system: str | None = None
    template: TemplateSettings | None = None
    """Of a whole model how its chat template is used."""
    bind: str = HOST
    """The address on which a server listens that the target starts."""

    @property
    def model(self) -> Path:
        """The GGUF file of a GGUF package."""
        return self.folder / next(name for name in sorted(self.files) if name.endswith(".gguf"))


@dataclass(frozen=True)
class RemoteModel:
    """A version that somebody else serves, as a target gets it in place of a package: it has no
    files."""

    agent: str
    version: str
    name: str
    url: str
    """Base of the API; usually ends with /v1."""
    model: str
    """What the server calls it."""
    family: str
    """Whose API the server speaks first: openai, anthropic or ollama."""
    secret: str | None
    """The name of the secret (core/secret_store.py) that the server wants."""
    secret_agent: str | None
    """Whose it is: the agent's, or the home's where this is None."""
    private: bool
    """Whether the settings allow the URL to lead to a loopback or private address."""
    state_folder: Path
    """As of a package; its home has the secret."""
    export_id: None = None


@dataclass(frozen=True)
class Endpoint:
    """Where a deployed version answers: OpenAI-compatible, `url` ends with /v1."""

    url: str
    """Address of the server's API; it ends with /v1."""
    model: str
    """Name of the model there."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """JSON that only the target reads; no secrets."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields that every request must have, whatever the client sends."""


@dataclass(frozen=True)
class Health:
    """`why` it does not answer, with the end of its log where there is one; empty for one that
    does."""

    alive: bool
    why: str = ""


class CanaryVerdict(StrEnum):
    """Of a canary. `unopposed`: nothing else could be served, for it is the base and nothing was
    live; or its weights are not here."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    UNOPPOSED = "unopposed"


class DeploymentState(StrEnum):
    """`warm` answers; `failed` was refused by its canary or could not be applied; `ended` was taken
    away."""

    APPLYING = "applying"
    WARM = "warm"
    FAILED = "failed"
    ENDED = "ended"


MOVES: dict[DeploymentState, frozenset[DeploymentState]] = {
    DeploymentState.APPLYING: frozenset({DeploymentState.WARM, DeploymentState.FAILED}),
    DeploymentState.WARM: frozenset({DeploymentState.APPLYING, DeploymentState.ENDED}),
    DeploymentState.FAILED: frozenset({DeploymentState.APPLYING, DeploymentState.ENDED}),
    DeploymentState.ENDED: frozenset(),
}


@dataclass(frozen=True)
class Deployment:
    """A version on a target. Which one is live follows from the aliases."""

    id: str
    """Id of the deployment."""
    agent: str
    """Agent of the version."""
    version: str
    """Version that answers (v3)."""
    version_id: str
    """Id of that version."""
    tainted: bool
    """Whether data that the version was trained on was erased; it is not called then."""
    export_id: str | None
    """Export whose files are served; null where somebody else serves the model."""
    target: str
    """embedded, llamacpp, ollama, vllm or remote."""
    name: str
    """Name of the model at its server."""
    settings: Mapping[str, Any]
    """Settings of the target."""
    endpoint: Endpoint | None
    """Where it answers; null until it was started."""
    state: DeploymentState
    """State of the deployment; only a warm one is called."""
    canary: Mapping[str, Any] | None
    """Result of the check before it was accepted; null if there was none."""
    recorded_at: datetime
    """When it was deployed (UTC)."""
    folder: str | None
    """The folder of the home (db/hosts.py) from which it was applied; None for one of before there
    were hosts, and for a server that somebody else runs."""
    host: str | None = None
    """The name of the other host of the home on which it runs; None if it runs here, or on a server
    that somebody else runs."""

    @property
    def is_accepted(self) -> bool:
        """Whether its canary passed, or somebody accepted an inconclusive one."""
        result = self.canary or {}
        if result.get("verdict") != CanaryVerdict.INCONCLUSIVE:
            return True
        return any("accepted by" in note for note in result["notes"])

    def check_move(self, state: DeploymentState) -> None:
        """Raise Conflict if there is no move from the present state to `state`."""
        if state not in MOVES[self.state]:
            raise Conflict(
                f"deployment {self.name!r} on {self.target}",
                f"it is {self.state}, which cannot become {state}",
                f"See: thumbwheel deployments --agent {self.agent}",
            )


@dataclass(frozen=True)
class DeployedVersion(Deployment):
    """A deployment with the move of the alias to it."""

    switch: Switch | None = None
    """None where no alias was asked for."""

    @classmethod
    def of(cls, deployment: Deployment, switch: Switch | None) -> DeployedVersion:
        """Return the deployment with this switch."""
        return cls(**vars(deployment), switch=switch)


@dataclass(frozen=True)
class DeployPlan:
    """What `deploy` would do."""

    version: str
    """Version that would be deployed (v3)."""
    target: str
    """Target that would serve it."""
    kind: str | None
    """The format of the files."""
    quant: str | None
    """Precision of the files; null for the format's own."""
    export: str | None
    """The export that would be used again."""
    folder: Path | None
    """Folder into which a new export would be written; null if an earlier one is used."""
    alias: str | None
    """Alias that would be moved; null for none."""
    misfits: list[str]
    """Reasons why it would be refused."""


@dataclass(frozen=True, kw_only=True)
class ListedDeployment(Deployment):
    """A deployment in the list of an agent's."""

    aliases: list[str]
    """Those that point at it."""
    alive: bool
    """Whether it answers now."""
    why: str
    """Why it does not answer."""


@dataclass(frozen=True)
class DeploymentHistory:
    """The deployments of an agent, and the moves of its aliases."""

    deployments: list[ListedDeployment]
    """All deployments, also those that ended."""
    switches: list[Switch]
    """Moves of the aliases, newest first."""


@dataclass(frozen=True)
class AliasRoute:
    """Where requests for an alias go. `exists`: whether the alias points at a version at all;
    `deployment` is None where that version is deployed nowhere."""

    exists: bool
    deployment: Deployment | None


class TargetConfig(Config):
    """Settings that every target has."""

    wait: float = 120.0
    """Seconds that a model may take to load before the deployment is given up"""


def public_name(agent: str, alias: str) -> str:
    """Return the name under which clients of a target ask for the alias.

    >>> public_name("support", "live"), public_name("support", "canary")
    ('support', 'support-canary')
    """
    return agent if alias == LIVE else f"{agent}-{alias}"


@dataclass(frozen=True)
class NamedSecret:
    """The name of a secret, and whose it is: the agent's, or the home's where that is None."""

    name: str
    """Name by which a version or channel refers to it."""
    agent: str | None
    """Agent whose secret it is; null for one of the home."""


@dataclass(frozen=True)
class ListedSecret(NamedSecret):
    """A secret in the list."""

    stored: bool
    """Whether a value is stored under this name."""
    needed_by: list[str]
    """Versions whose server wants it."""
