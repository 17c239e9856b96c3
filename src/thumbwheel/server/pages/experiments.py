"""The pages of experiments: which there are, one with its interval over its outcomes, and starting
one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thumbwheel.deploy import routing
from thumbwheel.experiments import controller
from thumbwheel.experiments.analysis import MISMATCH, SILENCE
from thumbwheel.experiments.history import Moment, history
from thumbwheel.experiments.types import SHARES, ExperimentConfig
from thumbwheel.loop.experiment import waiting_winner
from thumbwheel.models import versions
from thumbwheel.report.charts import Band, ChartLine, series
from thumbwheel.server.pages.charts import charts
from thumbwheel.server.pages.operations import offered_fields
from thumbwheel.server.pages.page import PageRequest

TONES = {"running": "wait", "paused": "", "won": "good", "lost": "bad", "stopped": ""}
MAIN = (
    "metric",
    "effect",
    "share",
    "min_units",
    "unit",
    "ramp",
    "hold_out",
    "min_hours",
    "max_hours",
)
GUARDS = ("error_rate", "latency_p95", "cost")


def load_list(asked: PageRequest) -> Mapping[str, Any]:
    """Load the agent's experiments, newest first."""
    experiments = controller.experiments_of(asked.ws, asked.agent)
    return {
        "experiments": [*reversed(experiments)],
        "tones": TONES,
        "may_deploy": asked.principal.may("deploy", asked.agent.slug),
    }


def load_experiment(asked: PageRequest) -> Mapping[str, Any]:
    """Load one experiment: the current figures and decision, how they developed, and its events."""
    experiment = controller.find(asked.ws, asked.parts["experiment"], asked.agent.slug)
    inputs, decision = controller.look(asked.ws, experiment)
    moments = history(asked.ws, experiment)
    names = [arm.name for arm in experiment.plan.arms]
    metric = experiment.plan.config.metric
    gains = _gains(moments, metric)
    return {
        "title": f"{' against '.join(names)}: {metric}",
        "experiment": experiment,
        "shares": experiment.stratum.shares,
        "inputs": inputs,
        "decision": decision,
        "moments": moments,
        "arms_with_gains": [each.arm for each in gains],
        "charts": charts(
            asked, [metric, gains], lambda: {each.arm: _drawing(each, metric) for each in gains}
        ),
        "mismatch": MISMATCH,
        "silence": SILENCE,
        "is_share": experiment.plan.config.metric in SHARES,
        "events": [*reversed(controller.events_of(asked.ws, experiment))],
        "verdicts": controller.verdicts_of(asked.ws, experiment),
        "waiting": waiting_winner(asked.ws, experiment),
        "collected": asdict(experiment.collected),
        "settings": experiment.plan.config.model_dump(mode="json"),
        "tones": TONES,
        "may_deploy": asked.principal.may("deploy", asked.agent.slug),
    }


def load_start(asked: PageRequest) -> Mapping[str, Any]:
    """Load the form that starts an experiment between deployed versions."""
    agent = asked.agent
    deployed = {row.version for row in routing.deployments(asked.ws, agent) if row.state == "warm"}
    config = asked.ws.settings(ExperimentConfig, "experiment")
    fields, more_fields = offered_fields("experiment start", ExperimentConfig, config, MAIN)
    aliases = versions.aliases_of(asked.ws, agent)
    all_versions = versions.versions(asked.ws, agent)
    names = {version.id: version.name for version in all_versions}
    return {
        "title": "Start an experiment",
        "deployed": [version.name for version in all_versions if version.name in deployed],
        "live": names.get(aliases.get("live", "")),
        "aliases": sorted(aliases) or ["live"],
        "guards": GUARDS,
        "fields": fields,
        "more_fields": more_fields,
    }


@dataclass(frozen=True)
class ArmGains:
    """How the gain of an arm developed, by the number of outcomes; in percentage points if it is
    the gain of a share."""

    arm: str
    gains: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]]
    """The interval that holds at every moment."""


def _gains(moments: Sequence[Moment], metric: str) -> list[ArmGains]:
    developments = []
    scale = 100 if metric in SHARES else 1
    arms = [comparison.arm for comparison in moments[-1].comparisons] if moments else []
    for arm in arms:
        gains: list[tuple[float, float]] = []
        band: list[tuple[float, float, float]] = []
        for moment in moments:
            (comparison,) = (row for row in moment.comparisons if row.arm == arm)
            if comparison.gain is not None:
                gains.append((moment.answered, scale * comparison.gain))
            if comparison.low is not None and comparison.high is not None:
                # Nobody can gain or lose more than everything.
                low, high = max(-1.0, comparison.low), min(1.0, comparison.high)
                band.append((moment.answered, scale * low, scale * high))
        if gains:
            developments.append(ArmGains(arm, gains, band))
    return developments


def _drawing(of: ArmGains, metric: str) -> str:
    """Return the chart of an arm's gain."""
    title = f"Gain of {of.arm} in {metric}, with the interval that holds at every moment"
    return series(
        [ChartLine(f"points of {of.arm}" if metric in SHARES else f"gain of {of.arm}", of.gains)],
        title,
        band=Band(of.band) if of.band else None,
        level=0.0,
        x_label="units with an outcome",
    )
