"""Nouns of this stage: what is deployed, where it answers, how it is, and the states of a
deployment with their legal moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.core.errors import Conflict
from thumbwheel.models.types import LIVE


class Kind(StrEnum):
    """The forms in which a version comes to a target."""

    ADAPTER = "adapter"
    """A PEFT adapter in `folder`, over the Hugging Face folder `base`."""
    MERGED = "merged"
    """A whole Hugging Face folder."""
    GGUF = "gguf"
    """One whole GGUF file."""
    LORA_GGUF = "lora_gguf"
    """An adapter as GGUF, over the GGUF file `base`."""


@dataclass(frozen=True)
class Package:
    """A version in a form that a target takes. `files`: relative name in `folder` -> sha256; all of
    them are there and verified."""

    agent: str
    version: str
    name: str
    """What the target shall call it: `support-v3`."""
    kind: Kind
    folder: Path
    files: Mapping[str, str]
    base: Path
    """What an adapter is over, see Kind; of a whole model its own folder or file."""
    base_fingerprint: str | None
    """Of an adapter's base, and of a base that is served as it is; None for a model that was
    merged."""
    tokenizer: Path
    """Folder with the tokenizer and the chat template that training used."""
    place: Path
    """Folder of the home where the target keeps what it needs to find its processes again: records,
    logs, generated files."""
    export_id: str | None = None
    stops: tuple[str, ...] = ()
    """Texts of the tokens that end an answer."""
    system: str | None = None

    @property
    def model(self) -> Path:
        """The GGUF file of a GGUF package."""
        return self.folder / next(name for name in sorted(self.files) if name.endswith(".gguf"))


@dataclass(frozen=True)
class Endpoint:
    """Where a deployed version answers: OpenAI-compatible, `url` ends with /v1."""

    url: str
    model: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """JSON, and the target's own; no secrets."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """What every request has to have besides, whatever the client says."""


@dataclass(frozen=True)
class Health:
    """`why` it does not answer, with the end of its log where there is one; empty for one that
    does."""

    alive: bool
    why: str = ""


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
    """A version on a target. What is live follows from aliases."""

    id: str
    agent: str
    version: str
    version_id: str
    tainted: bool
    export_id: str | None
    target: str
    name: str
    settings: Mapping[str, Any]
    endpoint: Endpoint | None
    state: DeploymentState
    canary: Mapping[str, Any] | None
    recorded_at: datetime

    def check_move(self, to: DeploymentState) -> None:
        """Raise Conflict where there is no move from this state to `to`."""
        if to not in MOVES[self.state]:
            what = f"deployment {self.name!r} on {self.target}"
            raise Conflict(
                what,
                f"it is {self.state}, which cannot become {to}",
                "See: thumbwheel deployments --agent AGENT",
            )


class TargetConfig(Config):
    """What every target can be told."""

    wait: float = 120.0
    """Seconds that a model may take to load before the deployment is given up"""


def public_name(agent: str, alias: str) -> str:
    """What clients of a target call the alias.

    >>> public_name("support", "live"), public_name("support", "canary")
    ('support', 'support-canary')
    """
    return agent if alias == LIVE else f"{agent}-{alias}"
