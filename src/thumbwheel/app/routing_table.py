"""Who answers a call: the aliases, deployments and experiments of all agents, in memory.

A choice reads no file and no row. The table follows what is written within 50 ms (db/refreshed.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thumbwheel.app.trial import CallLineage, Trial
from thumbwheel.core import key_files, log
from thumbwheel.core.errors import Conflict, InputError, ModelError, NotFound, ThumbwheelError
from thumbwheel.core.plugins import nearest
from thumbwheel.db.refreshed import EVERY, Refreshed
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import routing
from thumbwheel.deploy.types import Deployment
from thumbwheel.experiments import running as experiments
from thumbwheel.gateway.routing import Choice, Price, RoutingRequest, Upstream
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.models import versions
from thumbwheel.models.settings import may_be_private
from thumbwheel.models.types import CANARY, LIVE, Agent, family_of

AGAIN = 1.0
"""Seconds after which the rows are read again after any write, also where nothing shows that calls
go elsewhere: a server that was started again has another key."""
REMOTE = "remote"


@dataclass(frozen=True)
class Routes:
    """One state of the table: agent -> alias -> the choice, or why there is none."""

    choices: Mapping[str, Mapping[str, Choice | ThumbwheelError]] = field(default_factory=dict)
    trials: Mapping[tuple[str, str], Trial] = field(default_factory=dict)
    """(agent, alias) -> the experiment that runs there."""
    served: Mapping[str, Deployment] = field(default_factory=dict)
    """Id -> the deployment, of all that calls may go to, also where one does not answer."""
    numbered: Mapping[tuple[str, str], Choice | ThumbwheelError] = field(default_factory=dict)
    """(agent, version) -> the choice for a call that asks for that version, as `support:v3`."""

    def names(self, agent: str | None) -> list[str]:
        """Return the model names that clients may use, of one agent or of all."""
        names = []
        for slug, aliases in self.choices.items():
            if agent is None or slug == agent:
                names += [slug, *(f"{slug}:{alias}" for alias in aliases)]
        return names


class RoutingTable:
    """Start it by `with`."""

    def __init__(self, ws: Workspace, config: GatewayConfig, every: float = EVERY) -> None:
        self._ws, self._config = ws, config
        self._changes = ws.db.changes()
        self._secrets = ws.home.secrets
        self._routes = Routes()
        self._lineage = CallLineage()
        self._seen: tuple[object, object] | None = None
        self._state = ""
        self._read_at = float("-inf")
        self._is_due = True
        self._is_asked_again = threading.Event()
        self._refreshed = Refreshed(self._look, "table of routes", every)

    def __enter__(self) -> RoutingTable:
        self._refreshed.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._refreshed.__exit__()
        self._changes.close()

    def choose(self, request: RoutingRequest) -> Choice:
        """Return the choice of who answers. Raises NotFound, Conflict or ModelError."""
        routes = self._current()
        aliases = routes.choices.get(request.agent)
        choice = aliases.get(request.alias) if aliases else None
        if choice is None:
            choice = routes.numbered.get((request.agent, request.alias))
        if isinstance(choice, Choice):
            trial = routes.trials.get((request.agent, request.alias))
            return choice if trial is None else trial.choose(request)
        if choice is None:
            raise self._missing(request)
        raise type(choice)(choice.what, choice.why, choice.fix)

    def names(self, agent: str | None = None) -> list[str]:
        """Return the model names that clients may use, of one agent or of all."""
        return self._current().names(agent)

    def problem(self) -> str | None:
        """Return why the table may be out of date; None if it is not."""
        return self._refreshed.problem

    def refresh(self) -> None:
        """Check for changes now."""
        self._refreshed.refresh()

    def served(self) -> list[Deployment]:
        """Return the deployments that may receive calls now, even if they do not answer."""
        self.refresh()
        return list(self._routes.served.values())

    def read_again(self) -> None:
        """Read the rows again, because a server ended or was restarted."""
        self._is_asked_again.set()
        self.refresh()

    def _current(self) -> Routes:
        self._refreshed.ask()
        return self._routes

    def _look(self) -> None:
        now = time.monotonic()
        seen = (self._changes.marker(), key_files.version(self._secrets))
        if self._is_asked_again.is_set():
            self._is_asked_again.clear()
            self._read(now)
        if seen != self._seen:
            state = routing.routing_state(self._ws) + experiments.routing_state(self._ws)
            if state != self._state or self._seen is None or seen[1] != self._seen[1]:
                self._read(now)
            else:
                self._is_due = True
            self._state, self._seen = state, seen
        if self._is_due and now > self._read_at + AGAIN:
            self._read(now)

    def _read(self, now: float) -> None:
        choices: dict[str, dict[str, Choice | ThumbwheelError]] = {}
        served: dict[str, Deployment] = {}
        for agent, alias in routing.routes(self._ws):
            choice = _choice(self._ws, self._config, agent, alias, served)
            choices.setdefault(agent, {})[alias] = choice
        numbered = {
            (agent, name): _choice(self._ws, self._config, agent, name, served)
            for agent in choices
            for name in _deployed_versions(self._ws, agent)
        }
        self._routes = Routes(choices, self._trials(choices, served), served, numbered)
        self._read_at, self._is_due = now, False

    def _trials(
        self,
        choices: Mapping[str, Mapping[str, Choice | ThumbwheelError]],
        served: dict[str, Deployment],
    ) -> dict[tuple[str, str], Trial]:
        trials = {}
        for experiment in experiments.running(self._ws):
            control = choices.get(experiment.agent, {}).get(experiment.alias)
            if not isinstance(control, Choice):
                continue
            upstreams = {}
            for arm in experiment.plan.arms:
                version = versions.by_id(self._ws, arm.version_id)
                try:
                    unproved = experiment.plan.config.unproved
                    deployment = routing.answering(self._ws, version, CANARY, unproved=unproved)
                    served[deployment.id] = deployment
                    upstreams[arm.name] = upstream_of(self._ws, deployment)
                except ThumbwheelError as error:
                    log.logger.warning("arm %s of %s: %s", arm.name, experiment.id, error)
            key = (experiment.agent, experiment.alias)
            trials[key] = Trial.of(experiment, control, upstreams, self._lineage)
        return trials

    def _missing(self, request: RoutingRequest) -> ThumbwheelError:
        agents = list(self._routes.choices)
        if request.agent in agents:
            what = f"model {request.agent}:{request.alias}"
            names = self.names(request.agent)
            fix = f"Known: {', '.join(names)}.{nearest(what[6:], names)}"
            return NotFound(what[:200], "the alias points at no version", fix)
        return NotFound(
            f"agent {request.agent[:200]!r}",
            "no agent with that name has an alias that points at a version",
            f"Known: {', '.join(agents) or 'none yet; see thumbwheel deploy'}. Ask for one as the "
            f"model, or at /a/AGENT/v1.{nearest(request.agent, agents)}",
            outside="Ask for an agent as the model, or at /a/AGENT/v1; GET /v1/models lists yours",
        )


def tried_choice(ws: Workspace, agent: Agent, name: str) -> Choice:
    """Return the choice for a person who tries an alias (`live`) or any deployed version (`v3`).
    The gate need not have approved the version, and no experiment draws an arm. Raises NotFound for
    an unknown name, Conflict or ModelError if nothing there can answer."""
    if versions.NUMBERED.fullmatch(name):
        version = versions.version(ws, agent.slug, name)
        deployment = routing.answering(ws, version, CANARY, unproved=True)
    else:
        deployment = routing.resolve(ws, f"{agent.slug}:{name}")
    upstream = upstream_of(ws, deployment)
    return Choice(
        version=upstream.version,
        deployment=upstream.deployment,
        upstream=upstream,
        reason=f"{name}, tried in the playground",
    )


def _deployed_versions(ws: Workspace, agent: str) -> list[str]:
    """Return the names of the agent's deployed versions, sorted."""
    deployments = routing.deployments(ws, Agent.named(agent))
    return sorted({deployment.version for deployment in deployments})


def _choice(
    ws: Workspace,
    config: GatewayConfig,
    agent: str,
    alias: str,
    served: dict[str, Deployment],
) -> Choice | ThumbwheelError:
    """Return the choice for an alias, or the error why nobody answers; its deployments are added to
    `served`."""
    try:
        deployment = routing.resolve(ws, agent if alias == LIVE else f"{agent}:{alias}")
    except ThumbwheelError as error:
        return error
    served[deployment.id] = deployment
    fallbacks = _fallbacks(ws, config, agent, deployment, served)
    try:
        upstream = upstream_of(ws, deployment)
    except ThumbwheelError as error:
        if fallbacks:
            return _stand_in(deployment, alias, fallbacks, error.why)
        if isinstance(error, NotFound | InputError):
            # a key is missing: no fault of the app that asks
            return ModelError(error.what, error.why, error.fix)
        return error
    return Choice(
        version=upstream.version,
        deployment=upstream.deployment,
        upstream=upstream,
        reason=f"alias {alias}",
        fallbacks=tuple(fallbacks),
    )


def _fallbacks(
    ws: Workspace,
    config: GatewayConfig,
    agent: str,
    deployment: Deployment,
    served: dict[str, Deployment],
) -> list[Upstream]:
    """Return the upstreams that may answer instead of a deployment; their deployments are added to
    `served`."""
    fallbacks = []
    for name in config.policy(agent).fallback:
        try:
            stand_in = routing.stand_in(ws, Agent.named(agent), name)
            served[stand_in.id] = stand_in
            fallback = upstream_of(ws, stand_in)
        except ThumbwheelError as error:
            log.logger.warning("fallback %r of %s is left out: %s", name, agent, error)
            continue
        if fallback.deployment != deployment.id:
            fallbacks.append(fallback)
    return fallbacks


def _stand_in(
    deployment: Deployment, alias: str, fallbacks: Sequence[Upstream], why: str
) -> Choice:
    """Return the choice for an alias whose own deployment cannot be called."""
    first, *others = fallbacks
    chosen = Choice(
        version=deployment.version,
        deployment=deployment.id,
        upstream=first,
        reason=f"alias {alias}",
    )
    return replace(chosen.fall_back(first, why), fallbacks=tuple(others))


def upstream_of(ws: Workspace, deployment: Deployment) -> Upstream:
    """Return the upstream of a deployment, with its key and price. Raises ThumbwheelError if it has
    no endpoint or its key is missing."""
    endpoint = routing.require_endpoint(deployment)
    if routing.is_elsewhere(deployment):
        raise Conflict(
            f"{deployment.name} on {deployment.target}",
            f"it answers on host {deployment.host} only, whose model servers listen on loopback",
            "Set host.address there, restart its server and deploy again; or deploy it here: "
            f"thumbwheel deploy {deployment.version} --agent {deployment.agent} --target "
            f"{deployment.target} --alias none",
        )
    details: Mapping[str, Any] = endpoint.details
    prices = versions.by_id(ws, deployment.version_id).endpoint or {}
    return Upstream(
        version=deployment.version,
        deployment=deployment.id,
        target=deployment.target,
        url=endpoint.url,
        model=endpoint.model,
        secret=routing.secret(ws, deployment),
        body=endpoint.body,
        family=family_of(str(details.get("family", "openai"))),
        price=Price(prices.get("price_in"), prices.get("price_out")),
        private=deployment.target != REMOTE or may_be_private(ws, endpoint.url),
        shows_tools=bool(details.get("shows_tools", True)),
        control_tokens=tuple(details.get("control_tokens", ())),
        separator=str(details.get("separator", "")),
    )
