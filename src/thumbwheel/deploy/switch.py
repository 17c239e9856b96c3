"""Bringing a version to people and back: deploy, promote, roll back, take away. Every switch of an
alias is one row and one transaction.

A deployment exports what its target needs, lets it answer, proves by the canary that it is the
version, and only then moves the alias; so whatever fails on the way, the alias points where it did
and the old deployment goes on serving. Not here: how a target does it (targets/), what clients are
answered (serve.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict, DataError, ModelError, NotFound, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import canary, prepare, processes, store
from thumbwheel.deploy.canary import Canary, Verdict
from thumbwheel.deploy.prepare import Plan
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import (
    Deployment,
    DeploymentState,
    Endpoint,
    Health,
    Package,
    public_name,
)
from thumbwheel.evaluation.approval import require_approval
from thumbwheel.export.types import Acceptance
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, ModelVersion, State, Switch

UNDOES = "undoes"
"""Key of a switch's evidence: the ids of the switches that it takes back."""


@dataclass(frozen=True)
class Deployed:
    """`switch` is None where no alias was asked for."""

    deployment: Deployment
    canary: Canary
    switch: Switch | None


def plan(
    ws: Workspace,
    agent: str,
    version: str,
    target: str,
    alias: str | None = LIVE,
    quant: str | None = None,
) -> Plan:
    """What `deploy` would do; raises what it would raise before it touches anything."""
    one = versions.version(ws, agent, version)
    _check(ws, one, alias)
    return prepare.plan(ws, one, target, TARGETS.get(target).kinds, quant)


def deploy(
    ws: Workspace,
    agent: str,
    version: str,
    target: str,
    alias: str | None = LIVE,
    *,
    quant: str | None = None,
    settings: Mapping[str, Any] | None = None,
    accept: str | None = None,
) -> Deployed:
    """Let `version` answer on `target`, prove that it does, and point `alias` at it; without an
    alias it is kept warm.

    Raises Conflict for a version that may not be served, ModelError for one that cannot be or is
    not what it should be, DataError where the canary cannot tell (it is warm then, and `accept`,
    "name: reason", takes it as it is), StorageError for a full disk.
    """
    planned = plan(ws, agent, version, target, alias, quant)
    one, at, agent_id = (
        versions.version(ws, agent, version),
        TARGETS.get(target),
        versions.require_agent(ws, agent),
    )
    chosen = ws.settings(at.Config, f"deploy.{target}", settings)
    at.check(chosen)
    taken = Acceptance.read(accept) if accept else None
    pointing = versions.aliases_of(ws, agent)
    before = pointing.get(alias or LIVE) or pointing.get(LIVE)
    kept = chosen.model_dump(mode="json") | {"quant": quant}
    parcel = _named(ws, prepare.package(ws, one, planned, accept), one, target, kept)
    made = ws.db.write(
        lambda c: store.begin(c, agent_id, one.id, parcel.export_id, target, parcel.name, kept)
    )
    row = by_id(ws, made)
    endpoint: Endpoint | None = None
    try:
        endpoint = at.apply(parcel, chosen)
        found = canary.check(
            ws, one, versions.by_id(ws, before) if before else None, endpoint, at.secret(endpoint)
        )
    except BaseException:
        _give_up(ws, row, endpoint, None)
        raise
    if found.verdict is Verdict.FAILED:
        _give_up(ws, row, endpoint, found)
        fix = "The alias was not moved. Export the version anew, or in a finer precision"
        raise ModelError(
            f"{row.name} on {target}",
            f"what answers is not the promoted version: {found.says()}",
            fix,
        )
    if found.verdict is Verdict.INCONCLUSIVE and taken:
        found = canary.accepted(found, f"{taken.name}: {taken.reason}")
    done = _settle(ws, row, DeploymentState.WARM, endpoint, found)
    if alias is not None and not _proven(done):
        fix = (
            f'It is warm, and {alias!r} is where it was. To switch all the same: --accept "your '
            'name: why"'
        )
        raise DataError(f"the canary of {one.name} on {target}", found.says(), fix)
    switch = (
        promote(ws, agent, one.name, alias, reason=f"deployed on {target}", deployment=done.id)
        if alias is not None
        else None
    )
    _supersede(ws, done)
    return Deployed(done, found, switch)


def _named(
    ws: Workspace, parcel: Package, one: ModelVersion, target: str, settings: Mapping[str, Any]
) -> Package:
    """The package under the name of the like one that answers, or under a new one beside others,
    which it must not overwrite."""
    warm = [row for row in _warm(ws, one) if row.target == target]
    like = [
        row.name for row in warm if (row.export_id, row.settings) == (parcel.export_id, settings)
    ]
    if like:
        return replace(parcel, name=like[0])
    return replace(parcel, name=f"{parcel.name}-{ids.new('dep')[-6:].lower()}") if warm else parcel


def _supersede(ws: Workspace, new: Deployment) -> None:
    """End earlier deployments of the version on the target: not what an alias is answered by, nor
    what is proven where `new` is not."""
    needed = {
        row.id
        for alias in versions.aliases_of(ws, new.agent)
        if (row := behind(ws, new.agent, alias)[1])
    }
    same = [
        row
        for row in deployments(ws, new.agent)
        if (row.version_id, row.target) == (new.version_id, new.target)
    ]
    for row in same:
        if row.id not in {*needed, new.id} and (_proven(new) or not _proven(row)):
            ws.db.write(lambda connection, row=row: store.end(connection, store.by_id(row.id)))  # type: ignore[misc]
            _clear(ws, row, row.endpoint)


def _proven(one: Deployment) -> bool:
    """Whether its canary passed, or somebody took it as it is."""
    seen = one.canary or {}
    return seen.get("verdict") != Verdict.INCONCLUSIVE or any(
        "accepted by" in note for note in seen["notes"]
    )


def _check(ws: Workspace, one: ModelVersion, alias: str | None) -> None:
    if alias is not None:
        versions.check_alias_name(alias)
    if one.endpoint is not None:
        why = f"it is served elsewhere ({one.endpoint['url']}), and its weights are not here"
        raise Conflict(
            f"version {one.name!r} of agent {one.agent!r}",
            why,
            "Deploy a version that was trained here",
        )
    if alias is not None:
        require_approval(ws, one, alias)
    elif one.tainted or one.state in (State.REJECTED, State.RETIRED):
        why = (
            "it is tainted: data that it was trained on was erased"
            if one.tainted
            else f"it is {one.state}"
        )
        raise Conflict(
            f"version {one.name!r} of agent {one.agent!r}", why, "Deploy another version"
        )


def _settle(
    ws: Workspace,
    row: Deployment,
    to: DeploymentState,
    endpoint: Endpoint | None = None,
    found: Canary | None = None,
) -> Deployment:
    kept = found.to_json() if found else None
    ws.db.write(lambda connection: store.settle(connection, row, to, endpoint, kept))
    return by_id(ws, row.id)


def _give_up(
    ws: Workspace, row: Deployment, endpoint: Endpoint | None, found: Canary | None
) -> None:
    _settle(ws, row, DeploymentState.FAILED, endpoint, found)
    _clear(ws, row, endpoint)


def _clear(ws: Workspace, row: Deployment, endpoint: Endpoint | None) -> None:
    """Take away what answers, unless it is also that of a warm deployment: a server that was
    started again has another address."""
    warm = [
        one
        for one in deployments(ws, row.agent)
        if one.state is DeploymentState.WARM and one.endpoint and one.target == row.target
    ]
    if endpoint is None or _served(endpoint) in {_served(endpoint_of(one)) for one in warm}:
        return
    try:
        TARGETS.get(row.target).remove(endpoint)
    except ThumbwheelError as error:
        log.say(f"note: {row.name} stays on {row.target}: {error}")


def _served(endpoint: Endpoint) -> tuple[str, str]:
    """What taking `endpoint` away takes away: a model of a server, which is known by its place
    where it is ours."""
    return str(endpoint.details.get("place") or endpoint.url), endpoint.model


def promote(
    ws: Workspace,
    agent: str,
    version: str,
    alias: str = LIVE,
    *,
    reason: str = "promoted",
    deployment: str | None = None,
) -> Switch:
    """Point `alias` at a version that is deployed and proven, in one step; the version before it
    stays warm. `deployment`: rather this one.

    Raises Conflict where it is deployed nowhere or unproven, ModelError where it does not answer;
    the alias then is where it was.
    """
    one = versions.version(ws, agent, version)
    with _switching(ws, agent, alias):
        return _switch(ws, one, alias, reason, {}, deployment)


def rollback(ws: Workspace, agent: str, alias: str = LIVE) -> Switch:
    """Point `alias` back at the version before, in one step; a second time, at the one before that.

    Versions that may not be served any more are passed over, and that is said. Raises Conflict
    where there is nothing to go back to.
    """
    with _switching(ws, agent, alias):
        undone, now = [], versions.aliases_of(ws, agent).get(alias)
        history = standing(versions.switches(ws, agent, alias))
        for place, last in reversed(list(enumerate(history))):
            undone.append(last.id)
            if last.from_id is None:
                break
            if last.from_id == now:  # it moved to another deployment of the version, or back to it
                continue
            one = versions.by_id(ws, last.from_id)
            try:
                require_approval(ws, one, alias)
            except Conflict as error:
                log.say(f"passed over {one.name}: {error.why}")
                continue
            earlier = next(
                (
                    move.evidence.get("deployment")
                    for move in reversed(history[:place])
                    if move.to_id == one.id
                ),
                None,
            )
            return _switch(ws, one, alias, "rolled back", {UNDOES: undone}, earlier)
    raise Conflict(
        f"alias {alias!r} of agent {agent!r}",
        "there is no earlier version to go back to",
        f"See: thumbwheel deployments --agent {agent} --history",
    )


def standing(history: list[Switch]) -> list[Switch]:
    """The switches that were not taken back, oldest first; what took them back is left out too."""
    undone = {one for switch in history for one in switch.evidence.get(UNDOES, ())}
    return [
        switch for switch in history if switch.id not in undone and UNDOES not in switch.evidence
    ]


def _switch(
    ws: Workspace,
    one: ModelVersion,
    alias: str,
    reason: str,
    evidence: Mapping[str, Any],
    earlier: str | None,
) -> Switch:
    """`earlier`: rather the deployment with this id. Going back starts again what does not answer
    any more."""
    require_approval(ws, one, alias)
    found = _choose(ws, one, earlier)
    state = health(found)
    if not state.alive and UNDOES in evidence:
        log.say(f"{one.name} is not warm any more; it is started again")
        found = revive(ws, found)
        state = health(found)
    if not state.alive or found.endpoint is None:
        raise ModelError(
            f"{found.name} on {found.target}",
            f"it does not answer: {state.why}",
            f"Start it: thumbwheel deployments --agent {one.agent} --restart",
        )
    last = versions.switches(ws, one.agent, alias)[-1:]
    if (
        last
        and versions.aliases_of(ws, one.agent).get(alias) == one.id
        and last[0].evidence.get("deployment") == found.id
    ):
        TARGETS.get(found.target).point(public_name(one.agent, alias), endpoint_of(found))
        return last[0]
    before, name = behind(ws, one.agent, alias)[1], public_name(one.agent, alias)
    switch = versions.point(ws, one.agent, alias, one, reason, {"deployment": found.id, **evidence})
    try:
        TARGETS.get(found.target).point(name, endpoint_of(found))
    except BaseException:
        versions.take_back(ws, one.agent, switch)
        raise
    if before is not None and _goes_on(before, found.target):
        log.say(
            f"{before.target} itself goes on answering for {name!r} with {before.version}; ask "
            "`thumbwheel serve`, or undeploy that"
        )
    return switch


def _goes_on(before: Deployment, target: str) -> bool:
    """Whether clients of another target than `target` go on being answered there by what was behind
    the alias."""
    return (
        before.target != target
        and before.target in TARGETS.names()
        and TARGETS.get(before.target).named
    )


def _warm(ws: Workspace, one: ModelVersion) -> list[Deployment]:
    with ws.db.read() as connection:
        return [
            row
            for row in store.find(connection, ws.home.path, store.of_version(one.id))
            if row.state is DeploymentState.WARM
        ]


def _choose(ws: Workspace, one: ModelVersion, earlier: str | None = None) -> Deployment:
    """The proven deployment of a version that answers, first that with the id `earlier`, then the
    newest; where none does, the first."""
    found = _warm(ws, one)
    fix = f"Run: thumbwheel deploy {one.name} --agent {one.agent} --target TARGET"
    if not found:
        raise Conflict(
            f"version {one.name!r} of agent {one.agent!r}", "it is deployed nowhere", fix
        )
    proven = [row for row in found if _proven(row)]
    if not proven:
        raise Conflict(
            f"{found[0].name} on {found[0].target}",
            "its canary was inconclusive",
            f'{fix} --accept "your name: why"',
        )
    proven.sort(key=lambda row: row.id != earlier)
    return next((row for row in proven if health(row).alive), proven[0])


@contextmanager
def _switching(ws: Workspace, agent: str, alias: str) -> Iterator[None]:
    """One switch of an alias at a time over all processes, so that database and target end with the
    same one."""
    versions.require_agent(ws, agent)
    versions.check_alias_name(alias)
    with processes.held(ws.home.path / store.FOLDER / "switching" / f"{agent}.{alias}"):
        yield


def health(one: Deployment) -> Health:
    """Whether a deployment answers now."""
    if one.state is not DeploymentState.WARM or one.endpoint is None:
        return Health(False, f"it is {one.state}")
    return TARGETS.get(one.target).health(one.endpoint)


def revive(ws: Workspace, one: Deployment) -> Deployment:
    """Start a deployment again that does not answer; nothing to do for one that does. Its canary
    stands: the same files are verified."""
    if not health(one).alive:
        one = _restart(ws, one)
    for alias in versions.aliases_of(ws, one.agent):
        answering = behind(ws, one.agent, alias)[1]
        if (
            answering is not None and answering.id == one.id
        ):  # a target that was started again may have lost its own aliases
            require_approval(ws, versions.by_id(ws, one.version_id), alias)
            TARGETS.get(one.target).point(public_name(one.agent, alias), endpoint_of(one))
    return one


def _restart(ws: Workspace, one: Deployment) -> Deployment:
    version, at = versions.version(ws, one.agent, one.version), TARGETS.get(one.target)
    _check(ws, version, None)
    settings = dict(one.settings)
    planned = prepare.plan(ws, version, one.target, at.kinds, settings.pop("quant", None))
    parcel = replace(prepare.package(ws, version, planned), name=one.name)
    endpoint = at.apply(parcel, ws.settings(at.Config, f"deploy.{one.target}", settings))
    ws.db.write(lambda connection: store.move_endpoint(connection, ws.home.path, one, endpoint))
    return by_id(ws, one.id)


def stop(ws: Workspace, agent: str) -> list[Deployment]:
    """Let what serves the agent end, and leave aliases and records as they are, so that `restart`
    brings it back."""
    found = [one for one in deployments(ws, agent) if one.state is DeploymentState.WARM]
    _each(found, lambda one: TARGETS.get(one.target).remove(endpoint_of(one)))
    return found


def restart(ws: Workspace, agent: str) -> None:
    """Start every deployment again that does not answer and may."""
    _each(
        [
            one
            for one in deployments(ws, agent)
            if one.state is DeploymentState.WARM and not one.tainted
        ],
        lambda one: revive(ws, one),
    )


def _each(rows: Sequence[Deployment], work: Callable[[Deployment], Any]) -> None:
    """Do `work` on all of them, whatever becomes of the others; raises ModelError that names those
    on which it failed."""
    failed: list[tuple[Deployment, ThumbwheelError]] = []
    for one in rows:
        try:
            work(one)
        except ThumbwheelError as error:
            failed.append((one, error))
    if failed:
        what = ", ".join(f"{one.name} on {one.target}" for one, _ in failed)
        why = "; ".join(dict.fromkeys(f"{error.what}: {error.why}" for _, error in failed))
        raise ModelError(
            what, why, f"{len(rows) - len(failed)} of {len(rows)} are done. {failed[0][1].fix}"
        )


def secret(one: Deployment) -> str | None:
    """The bearer token with which a deployment is asked; None where it needs none."""
    return TARGETS.get(one.target).secret(one.endpoint) if one.endpoint else None


def undeploy(
    ws: Workspace, agent: str, version: str, target: str | None = None, *, forget: bool = False
) -> list[Deployment]:
    """Take a version away from `target`, or from all; raises Conflict while an alias needs it,
    unless it is tainted.

    A target that does not answer keeps it, and the deployment stays known; with `forget` our record
    goes all the same.
    """
    one = versions.version(ws, agent, version)
    with ws.db.read() as connection:
        found = [
            row
            for row in store.find(connection, ws.home.path, store.of_version(one.id))
            if target in (None, row.target)
        ]
    if not found:
        raise NotFound(
            f"a deployment of {one.name!r} of agent {agent!r}",
            "there is none",
            "See: thumbwheel deployments --agent AGENT",
        )
    served = [name for name, at in versions.aliases_of(ws, agent).items() if at == one.id]
    left = [row for row in _warm(ws, one) if row not in found and _proven(row)]
    if served and not left and not one.tainted:
        raise Conflict(
            f"version {one.name!r}",
            f"{', '.join(served)} points at it",
            "Promote another version first, or roll back",
        )

    def take(row: Deployment) -> None:
        try:
            if row.endpoint is not None:
                TARGETS.get(row.target).remove(row.endpoint)
        except ThumbwheelError as error:
            if not forget:
                raise
            log.say(f"note: {row.name} may still be on {row.target}: {error}")
        ws.db.write(lambda connection: store.end(connection, store.by_id(row.id)))

    _each(found, take)
    return [by_id(ws, row.id) for row in found]


def deployments(ws: Workspace, agent: str, ended: bool = False) -> list[Deployment]:
    """The agent's, newest first; with `ended` those too that are no more."""
    agent_id = versions.require_agent(ws, agent)
    with ws.db.read() as connection:
        found = store.find(connection, ws.home.path, store.of_agent(agent_id))
    return [one for one in found if ended or one.state is not DeploymentState.ENDED]


def by_id(ws: Workspace, deployment_id: str) -> Deployment:
    """The deployment with this id."""
    with ws.db.read() as connection:
        return store.find(connection, ws.home.path, store.by_id(deployment_id))[0]


def resolve(ws: Workspace, name: str) -> Deployment:
    """What answers for `support`, or `support:canary`; raises NotFound, and Conflict where nothing
    may or can answer."""
    agent, _, alias = name.partition(":")
    known, found = behind(ws, agent, alias or LIVE)
    what = f"model {name!r}"
    if not known:
        raise NotFound(
            what,
            "no version is behind that name",
            f"Deploy one: thumbwheel deploy VERSION --agent {agent} --target TARGET",
        )
    if found is None:
        raise Conflict(
            what,
            "its version is deployed nowhere",
            "Deploy it, or roll back: thumbwheel rollback --agent AGENT",
        )
    if found.tainted:
        raise Conflict(
            what,
            f"{found.version} is tainted: data that it was trained on was erased",
            "Roll back, or deploy another version",
        )
    require_approval(ws, versions.by_id(ws, found.version_id), alias or LIVE)
    return found


def behind(ws: Workspace, agent: str, alias: str) -> tuple[bool, Deployment | None]:
    """(whether the alias points anywhere, the deployment that answers for it)."""
    agent_id = ids.derived("agt", ids.slug(agent))
    with ws.db.read() as connection:
        return store.behind(connection, ws.home.path, agent_id, alias)


def endpoint_of(one: Deployment) -> Endpoint:
    """Where it answers; raises Conflict for one that never did."""
    if one.endpoint is None:
        raise Conflict(
            f"{one.name} on {one.target}",
            f"it is {one.state} and answers nowhere",
            "Deploy it again",
        )
    return one.endpoint
