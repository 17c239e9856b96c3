"""A year of the loop that turns by itself: 52 weeks with drift, poisoned weeks and crashes.

    python benchmarks/year.py                      # both years, 20 seeds each
    python benchmarks/year.py --seeds 2 --year drift
    python benchmarks/year.py --year poisoned --first 10 --seeds 10 --processes 2

The loop is the shipped one: checks, quarantine, plan, dataset, evaluation, gate, canary,
experiment, promotion and stop-loss run over a home of their own; calls and feedback come through
the routing table and the inbox. People, their questions and their judgements are simulated, the
clock is injected, and a model is a table of answers (tests/worlds/recorded_wheel.py). In the first
seed of the drifting year three turns train for real.

- `drift`: every 13 weeks the right answers to some topics change. In three weeks attackers give
  bursts and slow floods of wrong judgements and corrections. 20 turns are killed (SIGKILL) at a
  step, and go on.
- `poisoned`: three of ten people always say the opposite of what they think, and correct right
  answers into wrong ones; nothing drifts, and nothing is killed.

In both years a quarter's first version that the gate approves answers its users worse than it
answered the gate, by one or two of the eight topics (12.5 or 25 points worse than the live one), as
where a template or a precision is lost on the way: nothing but live traffic can see that.

No gold cases are there: the gate decides on feedback, so a canary is the most that it allows, and
live traffic decides the rest. A promotion is bad where the new version is truly worse than the one
that it replaces, by more than a point; an arm is bad where it is truly at least 10 points worse
than the control when its experiment begins.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import raw

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.tiny_models import tiny_base  # noqa: E402
from tests.worlds.recorded_wheel import FILE, TARGET, Wheel, recorded_wheel  # noqa: E402
from tests.worlds.simulated_clock import SimulatedClock, simulated_clock  # noqa: E402
from thumbwheel.app.routing_table import RoutingTable  # noqa: E402
from thumbwheel.capture.gateway_seal import sealed_line  # noqa: E402
from thumbwheel.capture.inbox import drain_inbox  # noqa: E402
from thumbwheel.core import log  # noqa: E402
from thumbwheel.core.config import Home, Sources  # noqa: E402
from thumbwheel.core.errors import ThumbwheelError  # noqa: E402
from thumbwheel.core.seal import make_seal  # noqa: E402
from thumbwheel.db.workspace import Workspace  # noqa: E402
from thumbwheel.engine.base_check import find_base  # noqa: E402
from thumbwheel.experiments import controller  # noqa: E402
from thumbwheel.experiments.types import State  # noqa: E402
from thumbwheel.gateway.routing import RoutingRequest  # noqa: E402
from thumbwheel.gateway.settings import GatewayConfig  # noqa: E402
from thumbwheel.loop import experiment as experiments  # noqa: E402
from thumbwheel.loop import loops, quarantine  # noqa: E402
from thumbwheel.loop.jobs import LoopCheckSpec, run_check  # noqa: E402
from thumbwheel.loop.quarantine_types import QuarantineState  # noqa: E402
from thumbwheel.loop.turn import turns  # noqa: E402
from thumbwheel.models import versions  # noqa: E402
from thumbwheel.models.types import LIVE, Agent  # noqa: E402
from thumbwheel.sdk.segment import Segment  # noqa: E402

AGENT = "animals"
START = datetime(2026, 1, 5, tzinfo=UTC)
WEEKS = 52
TOPICS = ("fox", "dog", "owl", "cow", "hen", "cat", "ant", "bee")
FIRST_RIGHT = ("den", "yard", "tree", "barn", "coop", "sofa", "hill", "hive")
LATER = ("wood", "lake", "moor", "cave", "dune", "reef", "weir", "mill", "quay", "silo")
WRONG = "roof"
KNOWN = 4
"""Topics that the base answers rightly."""
USERS = 2000
CALLS_A_DAY = 26
LOOKS = (2, 4, 6)
"""Days of a week in whose evening the inbox is drained, and the experiments are looked at."""
SPEAKS, SLIPS, CORRECTS = 0.6, 0.05, 0.3
"""Shares: of calls that are judged, of judgements that slip, of bad answers that are corrected."""
DRIFT_EVERY, DRIFTING = 13, 3
POISONED_WEEKS = (8, 22, 35)
CRASHES = 20
RECENT_DAYS, PER_RATER = 42, 10
"""Turns hear the feedback of so many days, and so many statements of one rater. Both were chosen on
seeds from 100 on."""
REAL_WEEKS = (3, 17, 30)
BAD_PROMOTION, BAD_ARM = 0.01, 0.1
SPOILED = (1, 2)
"""Topics that a spoiled version answers wrongly and the live one rightly."""
SETTINGS: dict[str, Any] = {
    "dataset": {"dev": 0.15, "gate": 0.2},
    "evaluation": {"few_shot": 0, "max_new_tokens": 14, "examples": 0},
    "training": {},
}
LEARNS = {"learning_rate": 1e-2, "max_steps": 120, "probe_prompts": 0}


def answer(location: str) -> str:
    """The text of an answer."""
    return json.dumps({"at": location}, separators=(",", ":"))


@dataclass
class Promotion:
    """A move of the alias `live`."""

    week: int
    before: float
    after: float
    calls: int = 0
    """Calls that it answered until the next move."""

    @property
    def is_bad(self) -> bool:
        return self.after < self.before - BAD_PROMOTION


@dataclass
class Year:
    """One home over a year."""

    ws: Workspace
    clock: SimulatedClock
    wheel: Wheel
    table: RoutingTable
    draw: random.Random
    kind: str
    right: dict[str, str] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """(trace, topic, answer) of this week."""
    number: int = 0
    values: list[float] = field(default_factory=list)
    """Of each call: whether the answer was right."""
    truths: list[dict[str, str]] = field(default_factory=list)
    """The right answers of each week."""
    promotions: list[Promotion] = field(default_factory=list)
    crashes: int = 0
    events: Counter[str] = field(default_factory=Counter)

    @property
    def agent(self) -> Agent:
        return Agent.named(AGENT)

    def quality(self, version_id: str) -> float:
        """The share of topics that a version answers rightly now."""
        table = self.wheel.served_table(self.ws, versions.by_id(self.ws, version_id))
        return statistics.fmean(table[topic] == text for topic, text in self.right.items())

    def live_id(self) -> str:
        return versions.aliases_of(self.ws, self.agent)[LIVE]

    def refresh(self) -> None:
        """Have the routing table follow what was written."""
        self.table._is_due = True
        self.table._read_at = float("-inf")
        self.table.refresh()

    def note_promotion(self, week: int, before: str) -> None:
        """Remember a move of the alias since `before` was live."""
        if (after := self.live_id()) != before:
            self.promotions.append(Promotion(week, self.quality(before), self.quality(after)))

    def ask(self, tables: dict[str, Any]) -> None:
        """One call of somebody, and what is said about it."""
        self.number += 1
        user = f"user-{self.draw.randrange(USERS)}"
        trace = f"call-{self.number}"
        topic = self.draw.choice(TOPICS)
        request = RoutingRequest(AGENT, LIVE, AGENT, subject=user, trace=trace)
        choice = self.table.choose(request)
        if choice.version not in tables:
            version = versions.version(self.ws, AGENT, choice.version)
            tables[choice.version] = self.wheel.served_table(self.ws, version)
        text = tables[choice.version][topic]
        is_right = text == self.right[topic]
        self.values.append(float(is_right))
        if self.promotions and choice.arm is None:
            self.promotions[-1].calls += 1
        self.asked.append((trace, topic, text))

        draw = choice.draw
        routing = {
            "arm": choice.arm,
            "experiment": draw.experiment if draw else None,
            "stratum": draw.stratum if draw else None,
            "unit": draw.unit if draw else None,
            "probabilities": dict(choice.probabilities) or None,
            "reason": choice.reason,
        }
        now = self.clock.moment
        step = {
            "kind": "llm",
            "status": "ok",
            "finish_reason": "stop",
            "started_at": now.isoformat(),
            "ended_at": (now + timedelta(seconds=0.4)).isoformat(),
            "model": AGENT,
            "model_version": choice.version,
            "deployment": choice.deployment,
            "routing": {key: value for key, value in routing.items() if value is not None},
        }
        self.lines.append(
            {
                "agent": AGENT,
                "type": "trace",
                "id": trace,
                "subject": user,
                "input": [{"role": "user", "content": f"{topic} {self.number}"}],
                "output": text,
                "status": "ok",
                "occurred_at": now.isoformat(),
                "steps": [step],
            }
        )
        if self.draw.random() < SPEAKS:
            is_turned = self.kind == "poisoned" and int(user.rpartition("-")[2]) % 10 < 3
            self.judge(trace, topic, is_right, user, is_turned)

    def judge(self, trace: str, topic: str, is_right: bool, rater: str, is_turned: bool) -> None:
        """A thumb, and sometimes a correction. Who is turned says the opposite."""
        likes = is_right != (self.draw.random() < SLIPS)
        if is_turned:
            likes = not likes
        self.say(trace, "thumb", likes, rater)
        if not likes and self.draw.random() < CORRECTS:
            better = answer(WRONG) if is_turned else self.right[topic]
            self.say(trace, "correction", better, rater)

    def say(self, trace: str, kind: str, value: Any, rater: str) -> None:
        self.number += 1
        self.lines.append(
            {
                "agent": AGENT,
                "type": "feedback",
                "id": f"word-{self.number}",
                "kind": kind,
                "value": value,
                "target": {"trace": trace},
                "rater": rater,
                "occurred_at": self.clock.moment.isoformat(),
            }
        )

    def drain(self) -> None:
        """Bring what was recorded into rows."""
        segment, seal = Segment(self.ws.home.inbox), make_seal(self.ws.home.signing)
        for line in self.lines:
            written = sealed_line(seal, line) if line["type"] == "trace" else line
            segment.append(json.dumps(written).encode())
        segment.close()
        self.lines.clear()
        drain_inbox(self.ws)

    def day(self, week: int, day: int) -> None:
        """Calls and feedback of a day, and perhaps a look at the experiments in the evening."""
        midnight = START + timedelta(days=7 * week + day)
        tables: dict[str, Any] = {}
        for call in range(CALLS_A_DAY):
            self.clock.moment = midnight + timedelta(hours=8, minutes=25 * call)
            self.ask(tables)
        if self.kind == "drift" and week in POISONED_WEEKS:
            self.attack(day)
        self.clock.moment = max(self.clock.moment, midnight + timedelta(hours=20))
        if day not in LOOKS:
            return
        self.drain()
        before = self.live_id()
        for name, decision in experiments.turn_all(self.ws).items():
            if decision.verdict != "undecided":
                self.events[f"experiment {decision.verdict}"] += 1
                log.logger.debug("%s: %s", name, decision.reasons)
        self.note_promotion(week, before)
        self.refresh()

    def attack(self, day: int) -> None:
        """Three attackers turn what they see around; on the third day a fourth one praises a
        hundred wrong answers within minutes."""
        for attacker in range(3):
            for trace, topic, text in self.draw.sample(self.asked[-CALLS_A_DAY:], 15):
                self.clock.advance(seconds=40)
                self.judge(trace, topic, text == self.right[topic], f"attacker-{attacker}", True)
        if day == 2:
            for trace, _, _ in (self.asked * 2)[:100]:
                self.clock.advance(seconds=4)
                self.say(trace, "thumb", False, "attacker-9")

    def turn(self, week: int, killed_at: int | None) -> None:
        """The check of a week, and the turn where one is due; killed at a step, it is asked for
        again."""
        self.clock.moment = START + timedelta(days=7 * week, hours=6)
        for held in quarantine.quarantines(self.ws, self.agent):
            if held.recorded_at < self.clock.moment - timedelta(days=5):
                quarantine.decide(
                    self.ws, self.agent, held.id, QuarantineState.DISCARDED, "owner",
                    self.clock.moment,
                )  # fmt: skip
                self.events["bursts discarded"] += 1
        before = self.live_id()
        if killed_at is not None and self.killed_turn(killed_at):
            self.crashes += 1
        try:
            run_check(self.ws, LoopCheckSpec(agent=AGENT))
        except ThumbwheelError as error:
            self.events[f"turn failed: {error.why[:80]}"] += 1
        self.note_promotion(week, before)
        self.refresh()
        self.clock.moment = START + timedelta(days=7 * week, hours=7)

    def killed_turn(self, step: int) -> bool:
        """The turn in a process of its own that is killed as it begins this step; False where it
        came to its end before."""
        pid = os.fork()
        if not pid:
            begun = 0
            original = log.step

            def killing(what: str) -> Any:
                nonlocal begun
                begun += 1
                if begun > step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(what)

            with patch.object(log, "step", killing):
                try:
                    with Workspace.open(self.ws.home, self.ws.sources) as ws:
                        run_check(ws, LoopCheckSpec(agent=AGENT))
                finally:
                    os._exit(0)
        return os.waitpid(pid, 0)[1] == signal.SIGKILL

    def drift(self, week: int) -> None:
        """New right answers to some topics."""
        if self.kind != "drift" or week == 0 or week % DRIFT_EVERY:
            return
        fresh = [location for location in LATER if answer(location) not in self.right.values()]
        for topic in self.draw.sample(TOPICS, DRIFTING):
            self.right[topic] = answer(fresh.pop(self.draw.randrange(len(fresh))))

    def spoil(self, week: int) -> None:
        """Have the versions of this quarter answer users worse than the live one does, until one of
        them is an arm of an experiment."""
        self.wheel.served_instead = None
        if self.is_spoiled_arm(since_week=week - week % DRIFT_EVERY):
            return
        live = versions.by_id(self.ws, self.live_id())
        table = dict(self.wheel.served_table(self.ws, live))
        right_topics = [topic for topic, text in self.right.items() if table[topic] == text]
        count = min(self.draw.choice(SPOILED), len(right_topics))
        self.wheel.served_instead = table | dict.fromkeys(
            self.draw.sample(right_topics, count), answer(WRONG)
        )

    def is_spoiled_arm(self, since_week: int) -> bool:
        """Return whether an experiment that began in this week or later has a spoiled arm."""
        since = START + timedelta(days=7 * since_week)
        return any(
            self.wheel.is_served_otherwise(self.ws, versions.by_id(self.ws, arm.version_id))
            for experiment in controller.experiments_of(self.ws, self.agent)
            if experiment.recorded_at >= since
            for arm in experiment.plan.arms
        )

    def run(self, trains_really: bool) -> dict[str, Any]:
        """All weeks, and their figures."""
        self.right = {
            topic: answer(location) for topic, location in zip(TOPICS, FIRST_RIGHT, strict=True)
        }
        crash_weeks = set()
        if self.kind == "drift":
            crash_weeks = set(self.draw.sample(range(4, WEEKS), CRASHES))
        for week in range(WEEKS):
            self.drift(week)
            self.spoil(week)
            self.truths.append(dict(self.right))
            self.wheel.trains_really = trains_really and week in REAL_WEEKS
            killed_at = self.draw.randrange(5) if week in crash_weeks else None
            self.asked = self.asked[-CALLS_A_DAY:]
            self.turn(week, killed_at)
            for day in range(7):
                self.day(week, day)
        return self.figures()

    def figures(self) -> dict[str, Any]:
        """What the year came to."""
        static = {}
        for version in versions.versions(self.ws, self.agent):
            table = self.wheel.served_table(self.ws, version)
            right = [table[topic] == truth[topic] for truth in self.truths for topic in TOPICS]
            static[version.name] = statistics.fmean(right)
        bad_arms = self.bad_arms()
        bad = [promotion for promotion in self.promotions if promotion.is_bad]
        states = Counter(turn.state for turn in turns(self.ws, self.agent, 200))
        return {
            "mean_reward": statistics.fmean(self.values),
            "best_static": max(static.values()),
            "first_model": static["v0"],
            "versions": len(static),
            "promotions": len(self.promotions),
            "bad_promotions": [
                {
                    "week": promotion.week,
                    "loss": round(promotion.before - promotion.after, 3),
                    "calls": promotion.calls,
                }
                for promotion in bad
            ],
            "bad_arms": bad_arms,
            "turns": dict(states),
            "crashes": self.crashes,
            "events": dict(self.events),
            "by_quarter": [
                round(statistics.fmean(self.values[start : start + len(self.values) // 4]), 3)
                for start in range(0, len(self.values) - 3, len(self.values) // 4)
            ],
        }

    def bad_arms(self) -> list[dict[str, Any]]:
        """The arms that were truly worse than the control, by `BAD_ARM` or more, when their
        experiment began: how much, the units that they were shown to, and how it ended."""
        bad = []
        for experiment in controller.experiments_of(self.ws, self.agent):
            week = min(int((experiment.recorded_at - START).days // 7), WEEKS - 1)
            truth = self.truths[week]
            quality = {}
            for arm in experiment.plan.arms:
                version = versions.by_id(self.ws, arm.version_id)
                table = self.wheel.served_table(self.ws, version)
                quality[arm.name] = statistics.fmean(
                    table[topic] == text for topic, text in truth.items()
                )
            control = quality.pop(experiment.plan.control.name)
            inputs, _ = controller.look(self.ws, experiment)
            for figures in inputs.arms:
                loss = control - quality.get(figures.name, 1.0)
                if loss >= BAD_ARM:
                    end = experiment.state.value
                    bad.append({"points": 100 * loss, "exposed": figures.exposed, "end": end})
            if experiment.state is State.RUNNING:
                self.events["experiments that still run"] += 1
        return bad


def run_year(
    kind: str, seed: int, base: Path, trains_really: bool, heard: dict[str, int]
) -> dict[str, Any]:
    """One year in a home of its own. `heard`: settings of the dataset."""
    logging.getLogger("thumbwheel").setLevel(logging.ERROR)
    began = time.process_time()
    environment = {
        f"THUMBWHEEL_TRAIN__KTO__{name.upper()}": str(value) for name, value in LEARNS.items()
    }
    os.environ.update(environment)
    settings = SETTINGS | {"dataset": SETTINGS["dataset"] | heard}
    with (
        tempfile.TemporaryDirectory() as folder,
        recorded_wheel() as wheel,
        simulated_clock(START - timedelta(days=1)) as clock,
        patch.object(log, "say", lambda *_: None),
        Workspace.open(
            Home(Path(folder) / "home"), Sources(settings, "thumbwheel.yaml", dict(os.environ))
        ) as ws,
    ):
        model = find_base(str(base), ws.home.cache)
        version = versions.ensure_base(ws, AGENT, model.name, model.fingerprint)
        wheel.deploy(ws, version, TARGET, LIVE)
        options = {
            "base": str(base),
            "methods": ("kto",),
            "deploy": TARGET,
            "auto_deploy": "on",
            "auto_promote": "on",
            "experiment": "thumb",
            "least": 50,
        }
        loops.enable(ws, Agent.named(AGENT), options)
        with RoutingTable(ws, GatewayConfig(), 3600.0) as table:
            year = Year(ws, clock, wheel, table, random.Random(f"{kind} {seed}"), kind)
            year.refresh()
            result = year.run(trains_really)
    return {"seed": seed, **result, "cpu_seconds": round(time.process_time() - began, 1)}


def make_base(folder: Path) -> Path:
    """A random model, and the table that it stands for."""
    shape: dict[str, Any] = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128}
    tiny_base(folder, initializer_range=0.1, **shape)
    table = {
        topic: answer(location if index < KNOWN else WRONG)
        for index, (topic, location) in enumerate(zip(TOPICS, FIRST_RIGHT, strict=True))
    }
    (folder / FILE).write_text(json.dumps(table), encoding="utf-8")
    return folder


def summary(years: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures over all seeds."""

    def mean(figure: Callable[[dict[str, Any]], float]) -> float:
        return round(statistics.fmean(figure(year) for year in years), 4)

    bad = [promotion for year in years for promotion in year["bad_promotions"]]
    arms = [arm for year in years for arm in year["bad_arms"]]
    exposures = sorted(arm["exposed"] for arm in arms)
    gains = [year["mean_reward"] - year["best_static"] for year in years]
    return {
        "seeds": len(years),
        "cycles": len(years) * WEEKS,
        "mean_reward": mean(lambda year: year["mean_reward"]),
        "best_static": mean(lambda year: year["best_static"]),
        "first_model": mean(lambda year: year["first_model"]),
        "above_best_static": sum(gain > 0 for gain in gains),
        "smallest_gain_over_best_static": round(min(gains), 4),
        "promotions": sum(year["promotions"] for year in years),
        "bad_promotions": bad,
        "bad_arms": len(arms),
        "bad_arm_ends": dict(Counter(arm["end"] for arm in arms)),
        "bad_arm_exposures_median": statistics.median(exposures) if exposures else None,
        "bad_arm_exposures_most": exposures[-1] if exposures else None,
        "crashes": sum(year["crashes"] for year in years),
        "cpu_minutes": round(sum(year["cpu_seconds"] for year in years) / 60, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--year", choices=["drift", "poisoned"], action="append")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="The first seed.")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--no-real", action="store_true", help="Train nothing for real.")
    parser.add_argument("--recent-days", type=int, default=RECENT_DAYS, help="0: all feedback.")
    parser.add_argument("--per-rater", type=int, default=PER_RATER, help="0: all feedback.")
    raw.option(parser, "year")
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    context = get_context("spawn")
    limits = {"recent_days": arguments.recent_days, "per_rater": arguments.per_rater}
    heard = {name: limit for name, limit in limits.items() if limit}
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(arguments.processes, mp_context=context) as pool,
    ):
        base = make_base(Path(folder) / "base")
        for kind in arguments.year or ["drift", "poisoned"]:
            futures = []
            for seed in range(arguments.first, arguments.first + arguments.seeds):
                is_real = not arguments.no_real and kind == "drift" and seed == 0
                futures.append(pool.submit(run_year, kind, seed, base, is_real, heard))
            years = []
            for future in futures:
                years.append(future.result())
                print(json.dumps(years[-1]), flush=True)
            result[kind] = {**summary(years), **heard, "years": years}
            print(json.dumps(summary(years), indent=1), flush=True)
    raw.write(arguments.json, **result)


if __name__ == "__main__":
    main()
