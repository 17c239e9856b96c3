"""The wheel that turns by itself, with a real server: `thumbwheel demo --online`.

A person's mail goes through the gateway, and thumbs come back through the API. The loop trains, and
its gate lets a candidate be a canary. Live traffic decides whether it becomes what answers. Then
forgers send feedback of their own. The next turn learns from it, the gate approves that candidate
by the forged ratings, and the person's traffic throws it out.

Each stage looks at the home to see how far it came. So a demo that was stopped, or killed, goes on
where it was when it is started again with the same options.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from thumbwheel.app.open import Opener
from thumbwheel.app.run_or_submit import followed, submitted
from thumbwheel.core import log
from thumbwheel.core.errors import ModelError
from thumbwheel.core.files import replace
from thumbwheel.db.workspace import Workspace
from thumbwheel.demo.base import ensure_base
from thumbwheel.demo.online_traffic import (
    AnswerTally,
    DemoClient,
    Mailbox,
    Send,
    forgers_send,
    mailbox,
    person_sends,
)
from thumbwheel.demo.run import (
    AGENT,
    MARK,
    base_cache,
    base_progress,
    clear_home,
    copy_folder,
)
from thumbwheel.deploy import processes, running
from thumbwheel.deploy.deploy import deploy
from thumbwheel.deploy.processes import Running
from thumbwheel.deploy.routing import route
from thumbwheel.engine.base_check import find_base
from thumbwheel.experiments import controller
from thumbwheel.experiments.row_seals import check_seals
from thumbwheel.experiments.types import ENDS, Experiment, State
from thumbwheel.jobs import queue
from thumbwheel.jobs.types import ENDED
from thumbwheel.llm.port import HOST
from thumbwheel.loop import loops
from thumbwheel.loop.cycle_types import CheckResult, TurnResult
from thumbwheel.loop.jobs import LoopCheckSpec
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, Agent, Basis

USE, FIRST, FORGERY, SECOND = "use", "first-trial", "forgery", "second-trial"
TARGET = "embedded"
SERVER = "server"
"""Folder of the home with the record and the log of the demo's server."""
CONFIG = "thumbwheel.yaml"
SETTINGS = """\
experiment:
  unit: session          # one person uses the filer, so the conversations are what is drawn
  rater_units: 100000    # and all words are theirs
  min_senders: 1
  min_hours: 0           # days pass within minutes
dataset:
  gate: 0.2              # of few ratings, more are held out
"""
LOOK_EVERY = 5
"""Mails between two looks at whether an experiment has ended."""
WRITTEN_EVERY = 20
"""Mails that a killed demo sends again at most."""
LAST_LOOK = 10.0
"""Seconds that the server gets to look at the last mails."""
START, STOP = 120.0, 60.0
"""Seconds that the server has to start, and to stop."""


@dataclass(frozen=True)
class OnlineOptions:
    """How many mails there are of each stage; the defaults are the demo."""

    seed: int = 1
    mails: int = 600
    """That the person rates before the first turn."""
    forged: int = 500
    judged: int = 700
    """At most, while an experiment runs."""
    noise: float = 0.05

    @property
    def sizes(self) -> dict[str, int]:
        """Stage -> its mails."""
        return {USE: self.mails, FIRST: self.judged, FORGERY: self.forged, SECOND: self.judged}


@dataclass
class DemoTrial:
    """An experiment as the demo saw it."""

    experiment: str
    arms: list[str]
    state: str
    reason: str
    exposed: dict[str, int]
    """Arm -> its conversations."""
    is_replayed: bool
    """Whether its verdict was computed again from sealed rows, with the same result."""


@dataclass
class OnlineResult:
    """What the demo ends with."""

    ended_as_said: bool = False
    """One version was promoted by a won experiment, and the forged one rolled back."""
    live: str = ""
    basis: str | None = None
    """What the approval of the live version rests on."""
    trials: list[DemoTrial] = field(default_factory=list)
    right: dict[str, dict[str, float]] = field(default_factory=dict)
    """Stage -> version -> share of right answers, which only the simulator knows."""
    reasons: list[str] = field(default_factory=list)
    """Why it ended otherwise."""
    seconds: float = 0.0
    home: str = ""


@dataclass
class DemoProgress:
    """How far the mails of a demo came, in the file that marks its home."""

    path: Path
    options: OnlineOptions
    sent: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    """That earlier runs of this demo took."""
    answers: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Stage -> the counts of a Tally."""
    is_finished: bool = False

    def write(self) -> None:
        """Replace the file."""
        content = asdict(self)
        del content["path"]
        replace(self.path, json.dumps(content, indent=1))

    @classmethod
    def read(cls, path: Path, options: OnlineOptions) -> DemoProgress | None:
        """Read the progress of an unfinished demo with these options; None if there is none."""
        try:
            content = json.loads(path.read_text())
            earlier = OnlineOptions(**content.pop("options"))
            progress = cls(path, earlier, **content)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return None if progress.is_finished or earlier != options else progress


def run_online(home: Path, options: OnlineOptions) -> OnlineResult:
    """Play the whole demo in `home`, or go on with one that was stopped there. Raises Conflict for
    a folder that is something else, and every error of a stage; a server that it started is
    stopped."""
    began = time.monotonic()
    progress = DemoProgress.read(home / MARK, options)
    if progress is None:
        clear_home(home, {"online": True})
        progress = DemoProgress(home / MARK, options)
        progress.write()
    else:
        log.say("this demo was stopped before its end, and goes on where it was")
    (home / CONFIG).write_text(SETTINGS)
    opener = Opener(home, home / CONFIG)
    result = OnlineResult(home=str(home))
    earlier_seconds = progress.seconds
    with opener() as ws, ExitStack() as stack:
        stack.callback(running.stop, ws, Agent.named(AGENT))
        try:
            server = _served(ws, opener, stack)
            with DemoClient(server.url, AGENT) as client:
                _play(ws, client, options, progress, result)
        finally:
            progress.seconds = earlier_seconds + time.monotonic() - began
            progress.write()
        _close(ws, result)
    for stage, counts in progress.answers.items():
        result.right[stage] = AnswerTally(counts).shares()
    result.seconds = progress.seconds
    progress.is_finished = True
    progress.write()
    return result


def _served(ws: Workspace, opener: Opener, stack: ExitStack) -> Running:
    """Deploy the base behind the alias `live`, enable the loop, and return the server, which has
    one worker."""
    with log.step("the app: a base that knows the common rules answers as v0"):
        with base_progress() as show:
            trained = ensure_base(base_cache(), progress=show)
        folder = ws.home.path / "base"
        if not folder.is_dir():
            copy_folder(trained, folder)
        base = find_base(str(folder), ws.home.cache)
        agent = Agent.named(AGENT)
        version = versions.ensure_base(ws, AGENT, base.name, base.fingerprint)
        if route(ws, agent, LIVE).deployment is None:
            deploy(ws, version, TARGET)
        else:
            running.restart(ws, agent)
        if not loops.status(ws, agent).enabled:
            loops.enable(ws, agent, _loop_settings(ws))
    with log.step("the server: gateway, API, worker and experiments in a process of its own"):
        server = stack.enter_context(_server(ws, opener))
        log.say(f"  {server.url}, log {ws.home.path / SERVER / processes.LOG}")
    return server


def _loop_settings(ws: Workspace) -> dict[str, Any]:
    return {
        "least": 300,
        "methods": ["sft"],  # what the data plan recommends here; all of them take longer
        "check_minutes": 60,  # the demo asks for a check itself, so that nobody waits for the clock
        "deploy": TARGET,
        "experiment": "thumb",
        "auto_deploy": "on",
        "auto_promote": "on",
        "burst": None,  # one person rates hundreds of mails within minutes
        "base": str(ws.home.path / "base"),
    }


@contextmanager
def _server(ws: Workspace, opener: Opener) -> Iterator[Running]:
    """Yield a running `thumbwheel serve` for the home; a server that a killed demo left is used."""
    folder = ws.home.path / SERVER

    def command(port: int, token: str) -> tuple[list[str], Mapping[str, str]]:
        return opener.command("serve", "--port", str(port), "--workers", "1"), {}

    with processes.locked(folder):
        server = processes.find(folder)
        if server is None:
            server = processes.start(
                folder, command, _is_ready, what="the demo's server", wait=START
            )
    try:
        _await_worker(ws)
        yield server
    finally:
        with log.step("stop the server"):
            processes.stop(folder, STOP)


def _is_ready(server: Running) -> bool:
    """Return whether the server takes calls."""
    url = f"http://{HOST}:{server.port}/health"
    try:
        return httpx2.get(url, timeout=5.0, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def _await_worker(ws: Workspace) -> None:
    deadline = time.monotonic() + START
    while not queue.live_workers(ws):
        if time.monotonic() > deadline:
            why = f"no worker of it gave a sign of life within {START:.0f} s"
            raise ModelError("the demo's server", why, "Look into server/server.log in its home")
        time.sleep(processes.POLL)


def _play(
    ws: Workspace,
    client: DemoClient,
    options: OnlineOptions,
    progress: DemoProgress,
    result: OnlineResult,
) -> None:
    """Play the stages in their order; if the wheel decides otherwise, end with the reason."""
    box = mailbox(options.seed, options.sizes, FORGERY)
    stages = _Stages(ws, client, options, progress, box, result.reasons)
    stages.person_uses()
    first = stages.turn(1)
    if first is None or not stages.person_decides(FIRST, first):
        return
    stages.forgers_come()
    second = stages.turn(2)
    if second is not None:
        stages.person_decides(SECOND, second)


@dataclass
class _Stages:
    """The stages, each of which begins where the progress of the home says."""

    ws: Workspace
    client: DemoClient
    options: OnlineOptions
    progress: DemoProgress
    box: Mailbox
    reasons: list[str]
    """Why the demo ends before its last stage."""

    def person_uses(self) -> None:
        """Let the person send mails, rate the answers and correct some."""
        with log.step("the person uses the filer, and rates every answer"):
            self._person_sends(USE, True, None)

    def person_decides(self, stage: str, experiment: Experiment) -> bool:
        """Let the person go on as before while the experiment runs; return whether it came to an
        end."""
        arms = " against ".join(arm.name for arm in experiment.plan.arms)
        with log.step(f"the person goes on, and {arms} is decided by live traffic"):
            self._person_sends(stage, False, experiment)
            ended = self._await_end(experiment)
            log.say(f"  {ended.id} is {ended.state}: {ended.reason}")
        if ended.state not in ENDS:
            self.reasons.append(f"{ended.id} is undecided after {self.options.judged} mails")
        return ended.state in ENDS

    def forgers_come(self) -> None:
        """Let three accounts send feedback of their own."""
        with log.step("three forgers correct answers to their liking, and praise others"):
            send = forgers_send(self.client, self.box.person, FORGERY)
            self._send_mails(FORGERY, send, None)

    def turn(self, number: int) -> Experiment | None:
        """Return the experiment that the loop's turn of this number begins; None if it begins
        none."""
        agent = Agent.named(AGENT)
        begun = controller.experiments_of(self.ws, agent)
        if len(begun) >= number:
            return begun[number - 1]
        with log.step("the loop looks whether a turn is due, and its worker turns the wheel"):
            job_id = self._turn_job()
            cycle: TurnResult | None = followed(self.ws, job_id) if job_id else None
        if cycle is None:
            return None
        if cycle.experiment is None:
            self.reasons.append(f"turn {number} began no experiment: {'; '.join(cycle.reasons)}")
            return None
        return controller.find(self.ws, cycle.experiment)

    def _turn_job(self) -> str | None:
        """Return the id of a turn's job: the one that was stopped, else the one that a check asks
        for; None if no turn is due."""
        earlier, _ = queue.jobs(self.ws, kind="loop run", limit=1)
        if earlier and earlier[0].state not in ENDED:
            return earlier[0].id
        result: CheckResult = submitted(self.ws, "loop check", LoopCheckSpec(agent=AGENT))
        if result.job is None:
            self.reasons.append(f"no turn is due: {result.check.reason}")
        return result.job

    def _person_sends(self, stage: str, corrects: bool, experiment: Experiment | None) -> None:
        tally = AnswerTally(self.progress.answers.setdefault(stage, {}))
        noise = self.options.noise
        send = person_sends(self.client, self.box.person, stage, noise, corrects, tally)
        self._send_mails(stage, send, experiment)

    def _send_mails(self, stage: str, send: Send, experiment: Experiment | None) -> None:
        """Send the mails of a stage that were not sent yet, until the experiment ends."""
        mails = self.box.stages[stage]
        begin = self.progress.sent.get(stage, 0)
        with log.progress(stage, len(mails), "mails") as advance:
            advance(begin)
            try:
                for number in range(begin, len(mails)):
                    if number % LOOK_EVERY == 0 and self._has_ended(experiment):
                        return
                    send(number, mails[number])
                    self.progress.sent[stage] = number + 1
                    if number % WRITTEN_EVERY == 0:
                        self.progress.write()
                    advance()
            finally:
                self.progress.write()

    def _has_ended(self, experiment: Experiment | None) -> bool:
        if experiment is None:
            return False
        return controller.find(self.ws, experiment.id).state in ENDS

    def _await_end(self, experiment: Experiment) -> Experiment:
        """Return the experiment after the server has looked at the last mails."""
        deadline = time.monotonic() + LAST_LOOK
        while (current := controller.find(self.ws, experiment.id)).state not in ENDS:
            if time.monotonic() > deadline:
                break
            time.sleep(processes.POLL)
        return current


def _close(ws: Workspace, result: OnlineResult) -> None:
    """Fill in the result of the demo from the rows of the home."""
    agent = Agent.named(AGENT)
    for experiment in controller.experiments_of(ws, agent):
        result.trials.append(_trial(ws, experiment))
    live = versions.by_id(ws, versions.aliases_of(ws, agent)[LIVE])
    result.live, result.basis = live.name, live.basis
    states = [trial.state for trial in result.trials]
    is_promoted = bool(result.trials) and live.name == result.trials[0].arms[1]
    result.ended_as_said = (
        states == [State.WON, State.LOST] and is_promoted and live.basis is Basis.TRAFFIC
    )
    if not result.ended_as_said and not result.reasons:
        result.reasons = [trial.reason for trial in result.trials]


def _trial(ws: Workspace, experiment: Experiment) -> DemoTrial:
    inputs, _ = controller.look(ws, experiment)
    verdicts = controller.verdicts_of(ws, experiment)
    replays = [controller.replay(ws, verdict) for verdict in verdicts]
    return DemoTrial(
        experiment=experiment.id,
        arms=[arm.name for arm in experiment.plan.arms],
        state=str(experiment.state),
        reason=experiment.reason,
        exposed={arm.name: arm.exposed for arm in inputs.arms},
        is_replayed=bool(verdicts)
        and not check_seals(ws, experiment).changed
        and all(stored == recomputed for stored, _, recomputed in replays),
    )


def show_home(result: OnlineResult) -> None:
    """Run `experiment show` for both experiments and `loop status --why`, as the commands
    themselves."""
    sys.stdout.flush()
    opener = Opener(Path(result.home), Path(result.home) / CONFIG)
    commands = [opener.command("experiment", "show", trial.experiment) for trial in result.trials]
    commands.append(opener.command("loop", "status", "--agent", AGENT, "--why"))
    for command in commands:
        subprocess.run(command, check=True)
