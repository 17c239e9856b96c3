"""Where a call goes: what the gateway asks, and what it is answered. Who answers is composed in
`app`, from aliases and deployments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from thumbwheel.models.types import Family


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """The facts of a call by which its model is chosen."""

    agent: str
    alias: str
    """`live`, unless the client asked for `agent:ALIAS`."""
    model: str
    """The model as the client wrote it."""
    session: str | None = None
    subject: str | None = None
    key: str | None = None
    """The name of the gateway key that the client presented, never the key itself."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The client's own `x-thumbwheel-` headers, names in lower case."""
    trace: str | None = None
    """The id under which the call will be recorded."""
    parent: str | None = None
    """The trace that the call is a part of."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, in the owner's currency; None where nobody knows."""

    prompt: float | None = None
    completion: float | None = None


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server that answers with one version."""

    version: str
    """`v3`."""
    deployment: str
    """The id of the deployment."""
    target: str
    """The name of the target, as `llamacpp` or `remote`."""
    url: str
    """Base of its OpenAI API; usually ends with /v1."""
    model: str
    """What the server calls the model."""
    secret: str | None = field(default=None, repr=False)
    body: Mapping[str, object] = field(default_factory=dict)
    """Fields that every request must have, whatever the client sends."""
    family: Family = "openai"
    price: Price = Price()
    private: bool = False
    """Whether the owner allows it to be at a loopback or private address."""
    shows_tools: bool = True
    """Whether its model may see the tools of a request; False for a chat template without them."""
    control_tokens: tuple[str, ...] = ()
    """Texts that the server reads as control tokens wherever they stand."""
    separator: str = ""
    """The character that splits a control token in the text of a call."""


@dataclass(frozen=True, slots=True)
class ExperimentDraw:
    """What an experiment drew for a call."""

    experiment: str
    """The experiment's id."""
    stratum: int
    """Counts the changes of its shares."""
    unit: str | None
    """The salted hash of the user or session; None for a call that names none."""
    arm: str | None
    """The arm that was drawn; None where none was."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Who answers a call, and why."""

    version: str
    """`v3`: what answers, and so what the call is recorded with."""
    deployment: str
    upstream: Upstream
    arm: str | None = None
    """The experiment's arm; None where no experiment runs, and for a call that does not count."""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """Arm -> probability with which it was chosen, of all arms."""
    reason: str = ""
    """In words: `alias live`."""
    fallbacks: tuple[Upstream, ...] = ()
    """Who may answer where `upstream` does not, in this order."""
    is_fallback: bool = False
    """Whether `upstream` answers in place of the one that was chosen."""
    draw: ExperimentDraw | None = None
    """Of the experiment that runs there."""
    fails_everywhere: bool = False
    """Whether whoever may answer instead refused the call, too: that says something about the call,
    and nothing about the arm."""

    def fall_back(self, upstream: Upstream, why: str) -> Choice:
        """Return the choice with `upstream` answering instead. It counts for no arm, because no
        draw led to it."""
        reason = f"{self.reason}; fallback from {self.version} ({self.deployment}): {why}"
        return replace(
            self,
            version=upstream.version,
            deployment=upstream.deployment,
            upstream=upstream,
            arm=None,
            reason=reason,
            fallbacks=(),
            is_fallback=True,
        )


ChooseModel = Callable[[RoutingRequest], Choice]
"""Raises NotFound for an agent or alias that does not exist, Conflict for one whose version may not
or cannot answer. It blocks on nothing: it is asked on the event loop."""
