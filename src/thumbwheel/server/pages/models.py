"""The pages of versions: which there are and where they come from, one with its report, what was
evaluated, and what is deployed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.deploy import routing, running
from thumbwheel.deploy.switch import effective_switches
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import Deployment, Health
from thumbwheel.evaluation.decision_log import decisions_after
from thumbwheel.evaluation.evaluate import evaluations
from thumbwheel.evaluation.types import Evaluation
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.package import exports
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, Agent, ModelVersion, Switch
from thumbwheel.report import report_charts
from thumbwheel.report.report import collect
from thumbwheel.report.types import VersionReport
from thumbwheel.server.pages.charts import Charts, charts
from thumbwheel.server.pages.lineage_graph import origin_graph, version_graph
from thumbwheel.server.pages.operations import state_tag
from thumbwheel.server.pages.page import PageRequest

STATES = {"approved": "good", "rejected": "bad", "candidate": "wait", "retired": ""}
VERDICTS = {"approved": "good", "approved_for_canary": "wait", "rejected": "bad"}
MOST_DECISIONS = 1000
ALIASES = "models list"
"""The command that shows what aliases point at."""


@dataclass(frozen=True)
class VersionRow:
    """A version in a list."""

    version: ModelVersion
    aliases: Sequence[str]
    evaluation: Evaluation | None
    """The newest one that the gate decides on, else the newest."""
    decision: Mapping[str, Any] | None
    deployments: Sequence[Deployment]

    @property
    def is_served(self) -> bool:
        """Whether it answers on a target."""
        return any(deployment.state == "warm" for deployment in self.deployments)


def load_list(asked: PageRequest) -> Mapping[str, Any]:
    """Load the agent's versions, newest first, and the graph of their descent."""
    agent = asked.agent
    rows = version_rows(asked, agent)
    return {
        "rows": [*reversed(rows)],
        "graph": version_graph([(row.version, row.aliases) for row in rows], _pages(agent)),
        "states": STATES,
        "verdicts": VERDICTS,
    }


def load_model(asked: PageRequest) -> Mapping[str, Any]:
    """Load one version: its report as a page, and the possible actions."""
    ws, agent = asked.ws, asked.agent
    version = versions.version(ws, agent.slug, asked.parts["version"])
    report = collect(ws, version)
    (row,) = (row for row in version_rows(asked, agent) if row.version.id == version.id)
    live = _live(asked.ws, agent)
    return {
        "title": f"{version.name} of {agent.slug}",
        "version": version,
        "row": row,
        "report": report,
        "graph": origin_graph(report, row.aliases, _pages(agent)),
        "charts": _charts(asked, report),
        "states": STATES,
        "verdicts": VERDICTS,
        "live": live,
        "targets": _targets(version),
        "exports": exports(ws, version)[::-1],
        "formats": FORMATS.names(),
        "etag": state_tag(asked, ALIASES),
        "may_deploy": asked.principal.may("deploy", agent.slug),
        "may_decide": asked.principal.may("decide", agent.slug),
        "may_run": asked.principal.may("run", agent.slug),
    }


def _charts(asked: PageRequest, report: VersionReport) -> Charts:
    """Return the charts of a version's report."""
    shown = [report["evaluation"], report["data"], report["exports"], report["training"]]
    return charts(asked, shown, lambda: report_charts.draw(report))


def load_evaluations(asked: PageRequest) -> Mapping[str, Any]:
    """Load the agent's evaluations, those of the newest version first."""
    rows = []
    for version in reversed(versions.versions(asked.ws, asked.agent)):
        rows += [(version, evaluation) for evaluation in evaluations(asked.ws, version)[::-1]]
    return {
        "rows": rows,
        "decisions": _decisions(asked),
        "verdicts": VERDICTS,
        "versions": [version.name for version in versions.versions(asked.ws, asked.agent)],
        "may_run": asked.principal.may("run", asked.agent.slug),
    }


def load_evaluation(asked: PageRequest) -> Mapping[str, Any]:
    """Load the evaluation on which the gate decided about a version: by slice, with the answers
    that changed most."""
    version = versions.version(asked.ws, asked.agent.slug, asked.parts["version"])
    report = collect(asked.ws, version)
    return {
        "title": f"Evaluation of {version.name}",
        "version": version,
        "report": report,
        "evaluation": report["evaluation"],
        "charts": _charts(asked, report),
        "verdicts": VERDICTS,
    }


@dataclass(frozen=True)
class DeploymentRow:
    """A deployment in a list."""

    deployment: Deployment
    aliases: Sequence[str]
    health: Health


@dataclass(frozen=True)
class AliasRow:
    """An alias: what it points at, and what it pointed at before."""

    name: str
    version: str
    previous: str | None
    """What a rollback goes back to, where that may still be served."""
    since: Switch | None


def load_deployments(asked: PageRequest) -> Mapping[str, Any]:
    """Load the deployments with their health, and how the aliases moved."""
    ws, agent = asked.ws, asked.agent
    names = {version.id: version.name for version in versions.versions(ws, agent)}
    aliases, moves, serving = [], [], {}
    for alias, version_id in sorted(versions.aliases_of(ws, agent).items()):
        history = versions.switches(ws, agent, alias)
        moves += history
        previous = _previous(history, version_id)
        last = history[-1] if history else None
        aliases.append(AliasRow(alias, names[version_id], names.get(previous or ""), last))
        serving[alias] = routing.route(ws, agent, alias).deployment
    rows = []
    for deployment in routing.deployments(ws, agent):
        pointing = [alias for alias, row in serving.items() if row and row.id == deployment.id]
        rows.append(DeploymentRow(deployment, pointing, running.health(deployment)))
    return {
        "rows": rows,
        "aliases": aliases,
        "moves": sorted(moves, key=lambda move: move.recorded_at, reverse=True)[:50],
        "names": names,
        "etag": state_tag(asked, ALIASES),
        "may_deploy": asked.principal.may("deploy", agent.slug),
        "may_decide": asked.principal.may("decide", agent.slug),
    }


def _previous(history: Sequence[Switch], current_id: str) -> str | None:
    for switch in reversed(effective_switches(history)):
        if switch.from_id is not None and switch.from_id != current_id:
            return switch.from_id
    return None


def version_rows(asked: PageRequest, agent: Agent) -> list[VersionRow]:
    """Return the agent's versions, oldest first."""
    ws = asked.ws
    aliases: dict[str, list[str]] = {}
    for alias, version_id in sorted(versions.aliases_of(ws, agent).items()):
        aliases.setdefault(version_id, []).append(alias)
    decisions = _decisions(asked)
    by_version: dict[str, list[Deployment]] = {}
    for deployment in routing.deployments(ws, agent):
        by_version.setdefault(deployment.version_id, []).append(deployment)
    rows = []
    for version in versions.versions(ws, agent):
        row = VersionRow(
            version,
            aliases.get(version.id, []),
            _deciding(evaluations(ws, version)),
            decisions.get(version.name),
            by_version.get(version.id, []),
        )
        rows.append(row)
    return rows


def _decisions(asked: PageRequest) -> dict[str, Mapping[str, Any]]:
    """Return version name -> the gate's newest decision about it."""
    decisions = decisions_after(asked.ws, asked.agent, None, MOST_DECISIONS)
    return {decision["version"]: decision for decision in decisions}


def _deciding(candidates: Sequence[Evaluation]) -> Evaluation | None:
    deciding = [evaluation for evaluation in candidates if not evaluation.aside]
    newest = deciding or candidates
    return newest[-1] if newest else None


def _pages(agent: Agent) -> str:
    """Return the prefix of the agent's page addresses."""
    return f"/agents/{agent.slug}"


def _live(ws: Any, agent: Agent) -> str | None:
    """Return the name of the version that the alias live points at; None if there is none."""
    version_id = versions.aliases_of(ws, agent).get(LIVE)
    return None if version_id is None else versions.by_id(ws, version_id).name


def _targets(version: ModelVersion) -> list[str]:
    """Return the names of the targets to which the version may be deployed: only `remote` if
    somebody else serves it, else all others."""
    if version.endpoint:
        return ["remote"]
    return [name for name in TARGETS.names() if name != "remote"]
