"""The step from a canary to live: an experiment on live traffic, begun by a turn of the wheel.

The control is what answers today. The server looks at the experiment at every moment: an arm that
wins goes live, one that gets worse loses its traffic and is rolled back (`loop/experiment.py`).
Where the owner wants to be asked, a win only permits it, and the next check puts the question. A
person is asked in any case before the agent's first version goes live by traffic alone, unless
`auto_promote` is `on`.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError, Conflict, DataError
from thumbwheel.db.workspace import Workspace
from thumbwheel.experiments import controller
from thumbwheel.experiments.types import ENDS, Experiment, State
from thumbwheel.loop import experiment as verbs
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, Agent, ModelVersion

GUARDS = ("error_rate",)
"""What must not get worse while the traffic decides."""


def begin_experiment(
    ws: Workspace, version: ModelVersion, config: CycleConfig, cycle: CycleReport
) -> Experiment | None:
    """Start an experiment between the live version and `version`, which is deployed as canary;
    return it, or the one that this turn began before it was killed.

    Return None, with a reason in the report, if it cannot start: nothing is live, another
    experiment has the alias, or earlier ones speak against it. The version then stays a canary.
    """
    agent = Agent.named(version.agent)
    for earlier in controller.experiments_of(ws, agent):
        about = {arm.version_id for arm in earlier.plan.treatments}
        if version.id in about and earlier.state not in ENDS:
            return earlier
    live_id = versions.aliases_of(ws, agent).get(LIVE)
    if live_id is None:
        _say_none(cycle, "nothing is live to compare with")
        return None
    live = versions.by_id(ws, live_id)
    options: dict[str, Any] = {
        "metric": config.experiment,
        "promote": config.auto_promote in ("on", None),
        "ask_first": config.auto_promote is None,
    }
    if config.experiment_days is not None:
        options["max_hours"] = 24 * config.experiment_days
    try:
        plan, forecast = verbs.draft(ws, agent, LIVE, [live.name, version.name], GUARDS, options)
        experiment = verbs.start(ws, agent, LIVE, plan, forecast)
    except (ConfigError, Conflict, DataError) as error:
        _say_none(cycle, error.why)
        return None
    log.say(f"  {experiment.id}: {live.name} against {version.name} by {config.experiment}")
    return experiment


def _say_none(cycle: CycleReport, why: str) -> None:
    reason = f"no experiment began: {why}"
    log.say(f"  {reason}")
    cycle.reasons.append(reason)


def ask_about_winners(ws: Workspace, agent: Agent) -> list[str]:
    """Ask whether each version that won its experiment goes live, if the experiment does not
    promote it by itself and it is not live; return the questions. A question is stored only
    once."""
    live_id = versions.aliases_of(ws, agent).get(LIVE)
    questions = []
    for experiment in controller.experiments_of(ws, agent):
        if experiment.state is not State.WON or experiment.plan.config.promote:
            continue
        winners = [
            verdict.version_id
            for verdict in controller.verdicts_of(ws, experiment)
            if verdict.verdict == "won"
        ]
        if not winners or winners[-1] == live_id:
            continue
        winner = versions.by_id(ws, winners[-1])
        questions.append(verbs.ask_about_winner(ws, winner, experiment.reason))
    return questions
