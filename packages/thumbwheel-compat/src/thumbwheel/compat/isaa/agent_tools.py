"""Tools with which an agent trains and switches its own models, by their names: each starts or asks
for a job of the home, and answers with a text.

    for function, name, description in get_rl_training_tools():
        agent.add_tool(function, name=name, description=description)

A model's name is that of its job: the same name again goes on with a training that was stopped. A
model answers people only after it was evaluated and the gate approved it, which `switch_rl_model`
asks for. Where no worker of the home is alive, one is started, which ends with the last job. Any
other agent has all commands as tools of the Model Context Protocol, from `thumbwheel serve`.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from thumbwheel.app.open import Opener, opener
from thumbwheel.compat.isaa.training import METHODS
from thumbwheel.compat.script_home import errors_of
from thumbwheel.core.errors import ConfigError, Conflict, NotFound, ThumbwheelError
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.evaluation.result import EvaluationResult
from thumbwheel.jobs import queue
from thumbwheel.jobs.types import Job, JobState

KEY = "isaa rl training "
"""What the idempotency key of a job begins with; the name of the model follows."""
MOST = 10_000
STOP_SECONDS = 30.0
LOOK_EVERY = 0.1


class TrainingState(Enum):
    """How far a training is."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"


STATES = {
    JobState.QUEUED: TrainingState.STARTING,
    JobState.RUNNING: TrainingState.RUNNING,
    JobState.CANCELLING: TrainingState.STOPPING,
    JobState.CANCELLED: TrainingState.STOPPED,
    JobState.SUCCEEDED: TrainingState.COMPLETED,
    JobState.FAILED: TrainingState.FAILED,
}
ACTIVE = (TrainingState.STARTING, TrainingState.RUNNING)


@dataclass(frozen=True)
class TrainingSession:
    """A training that these tools started; unknown values are None. `version` is the one that it
    made, and `message` says why it made none."""

    session_id: str
    model_name: str
    base_model: str
    method: str
    state: TrainingState = TrainingState.IDLE
    start_time: str | None = None
    end_time: str | None = None
    current_step: float | None = None
    total_steps: float | None = None
    current_loss: float | None = None
    error_message: str | None = None
    output_dir: str = ""
    deployed_model_name: str | None = None
    agent_name: str = ""
    version: str | None = None
    message: str | None = None
    elapsed_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state.value}

    def as_model(self) -> dict[str, Any]:
        """Return the session as a line of `list_models`."""
        return {
            "name": self.model_name,
            "base_model": self.base_model,
            "method": self.method,
            "state": self.state.value,
            "deployed": self.deployed_model_name is not None,
            "ollama_model": self.deployed_model_name,
            "trained_at": self.end_time or self.start_time,
        }


class RLTrainingManager:
    """The trainings that were started by these tools in a home. `target` is where models are
    served.

    The methods of the original return dictionaries: `success` is false where something stands in
    the way, and `error` says what. `start`, `stop`, `switch` and `sessions` raise it instead.
    """

    def __init__(self, home: str | Path | None = None, target: str = "ollama") -> None:
        self.home = Path(home) if home else None
        self.opener: Opener = opener(self.home, None, "info")
        self.target = target

    def start_training(
        self,
        model_name: str,
        base_model: str = "Qwen/Qwen2.5-0.5B-Instruct",
        method: str = "grpo",
        agent_name: str = "default",
        num_epochs: float = 3,
        learning_rate: float = 5e-5,
    ) -> dict[str, Any]:
        """Start a training, or continue the one of this name, and return at once."""
        try:
            session = self.start(
                model_name, base_model, method, agent_name, num_epochs, learning_rate
            )
        except ThumbwheelError as error:
            return _failure(error)
        return {
            "success": True,
            "session_id": session.session_id,
            "message": f"Training started for {model_name} using {base_model}",
            "method": method,
            "output_dir": session.output_dir,
        }

    def stop_training(self, deploy: bool = True) -> dict[str, Any]:
        """Stop the training that runs, at a checkpoint. If it had just ended, `deploy` lets the
        model answer."""
        try:
            session = self.stop(deploy)
        except ThumbwheelError as error:
            return _failure(error)
        result = {
            "success": True,
            "session_id": session.session_id,
            "message": f"Training {session.state.value}, with a checkpoint",
            "output_dir": session.output_dir,
        }
        if session.deployed_model_name is not None:
            result["deployed_model"] = session.deployed_model_name
        return result

    def check_training_status(self) -> dict[str, Any]:
        """Return the running training, else the last one, under `session`."""
        sessions = self.sessions()
        if not sessions:
            message = "No training sessions found."
            return {"has_active_session": False, "session": None, "message": message}
        session = sessions[0]
        status: dict[str, Any] = {
            "has_active_session": session.state in ACTIVE,
            "session": session.to_dict(),
            "progress_percent": _percent(session),
            "elapsed_seconds": session.elapsed_seconds,
            "is_running": session.state is TrainingState.RUNNING,
        }
        if session.state not in ACTIVE:
            status["message"] = "No active training. Showing last session."
        return status

    def switch_model(self, model_name: str) -> dict[str, Any]:
        """Let a trained model answer: evaluated, approved by the gate, and served."""
        try:
            session = self.switch(model_name)
        except ThumbwheelError as error:
            trained = [row.model_name for row in self.sessions() if row.version]
            return {**_failure(error), "available_models": trained}
        return {
            "success": True,
            "model_name": model_name,
            "ollama_model": session.deployed_model_name,
            "message": f"Switched to model: {session.deployed_model_name}",
        }

    def list_models(self) -> dict[str, Any]:
        """Return all trainings, the newest first, and the models that are served."""
        sessions = self.sessions()
        models = [session.as_model() for session in sessions]
        active = {row.model_name: row.deployed_model_name for row in sessions}
        served = {name: model for name, model in active.items() if model is not None}
        return {"models": models, "active_models": served, "total": len(models)}

    def start(
        self,
        model_name: str,
        base_model: str,
        method: str,
        agent_name: str,
        num_epochs: float,
        learning_rate: float = 5e-5,
    ) -> TrainingSession:
        """Start a training. Raises ConfigError for an unknown method, Conflict while another one
        runs or if the name is in use."""
        if method not in METHODS:
            names = ", ".join(METHODS)
            raise ConfigError(f"method {method!r}", "there is no such method", f"Known: {names}")
        options = {
            "num_train_epochs": num_epochs,
            "min_steps": 1,
            "learning_rate": learning_rate,
        }
        spec = {
            "method": METHODS[method],
            "agent": agent_name,
            "base": base_model,
            "options": options,
        }
        with errors_of(self.home), self.opener() as ws:
            for other in _trainings(ws):
                if not other.has_ended and _name(other) != model_name:
                    raise Conflict(
                        f"job {other.id}", f"{_name(other)} trains already", "Wait, or stop it"
                    )
            job = queue.enqueue(
                ws,
                "train",
                spec,
                agent=agent_name,
                key=KEY + model_name,
                asked_by=self.opener.actor,
            )
            if job.state is JobState.CANCELLED:
                job = queue.resume(ws, job.id)
            elif job.state is JobState.FAILED:
                job = queue.retry(ws, job.id)
            elif job.state is JobState.SUCCEEDED:
                raise Conflict(f"model {model_name!r}", "it is trained", "Choose another name")
            self._ensure_worker(ws)
            return self._session(ws, job)

    def stop(self, deploy: bool = True) -> TrainingSession:
        """Stop the training that runs. Raises NotFound if none does, and what stands in the way of
        a model that was to answer."""
        with errors_of(self.home), self.opener() as ws:
            running = [job for job in _trainings(ws) if not job.has_ended]
            if not running:
                raise NotFound("a training", "none runs", "Start one: start_rl_training")
            job = queue.cancel(ws, running[0].id)
            deadline = time.monotonic() + STOP_SECONDS
            while not job.has_ended and time.monotonic() < deadline:
                time.sleep(LOOK_EVERY)
                job = queue.job(ws, job.id)
            session = self._session(ws, job)
        if deploy and session.version:
            return self.switch(session.model_name)
        return session

    def sessions(self) -> list[TrainingSession]:
        """Return all trainings, the newest first."""
        with errors_of(self.home), self.opener() as ws:
            return [self._session(ws, job) for job in _trainings(ws)]

    def switch(self, model_name: str) -> TrainingSession:
        """Let a trained model answer. Raises what stands in the way."""
        from thumbwheel.deploy import routing, switch
        from thumbwheel.models import versions

        with errors_of(self.home), self.opener() as ws:
            session = self._trained(ws, model_name)
            version = versions.version(ws, session.agent_name, str(session.version))
            deployed = [row.version_id for row in routing.deployments(ws, _agent(version.agent))]
            state = version.state
            if version.id in deployed:
                switch.promote(ws, version)
        named = {"agent": version.agent, "version": version.name}
        if version.id not in deployed:
            if state == "candidate":
                evaluated: EvaluationResult = self._run("evaluate", named)
                decision = evaluated.decision
                if decision is not None and decision.verdict == GateVerdict.REJECTED:
                    why = f"the gate rejected it: {'; '.join(decision.reasons)}"
                    raise Conflict(f"model {model_name!r}", why, "Train on more feedback")
            settings = {"name": self._served_as(session)} if self.target == "ollama" else {}
            self._run("deploy", {**named, "target": self.target, "set": settings})
        return replace(session, deployed_model_name=self._served_as(session))

    def _run(self, kind: str, spec: Mapping[str, Any]) -> Any:
        from thumbwheel.app.run_or_submit import checked_spec, run_or_submit

        with errors_of(self.home):
            return run_or_submit(self.opener, kind, checked_spec(kind, spec))

    def _trained(self, ws: Workspace, model_name: str) -> TrainingSession:
        """Return the training that produced a version of this name. Raises NotFound."""
        sessions = [self._session(ws, job) for job in _trainings(ws)]
        by_name = {session.model_name: session for session in sessions if session.version}
        if model_name in by_name:
            return by_name[model_name]
        names = ", ".join(by_name) or "none yet"
        fix = f"Available models: {names}.{nearest(model_name, by_name)}"
        raise NotFound(f"model {model_name!r}", "none of that name is trained", fix)

    def _session(self, ws: Workspace, job: Job) -> TrainingSession:
        result = job.result if isinstance(job.result, dict) else {}
        progress = job.progress or {}
        elapsed = None
        if job.started_at is not None:
            elapsed = ((job.ended_at or datetime.now(UTC)) - job.started_at).total_seconds()
        version = result.get("version")
        run_id = result.get("run_id")
        session = TrainingSession(
            session_id=job.id,
            model_name=_name(job),
            base_model=str(job.spec["base"]),
            method=next(name for name, ours in METHODS.items() if ours == job.spec["method"]),
            state=STATES[job.state],
            start_time=_iso(job.started_at),
            end_time=_iso(job.ended_at),
            current_step=progress.get("done"),
            total_steps=progress.get("total"),
            error_message=f"{job.error['why']}. {job.error['fix']}" if job.error else None,
            output_dir=str(ws.home.runs / run_id) if run_id else "",
            agent_name=str(job.agent),
            version=version,
            message=result.get("reason"),
            elapsed_seconds=elapsed,
        )
        if self._is_deployed(ws, session):
            return replace(session, deployed_model_name=self._served_as(session))
        return session

    def _served_as(self, session: TrainingSession) -> str:
        """Return the name by which a deployed model is asked for."""
        return f"toolbox-{session.model_name}" if self.target == "ollama" else session.agent_name

    def _is_deployed(self, ws: Workspace, session: TrainingSession) -> bool:
        from thumbwheel.deploy import routing
        from thumbwheel.models import versions

        if session.version is None:
            return False
        version = versions.version(ws, session.agent_name, session.version)
        deployments = routing.deployments(ws, _agent(version.agent))
        return version.id in [deployment.version_id for deployment in deployments]

    def _ensure_worker(self, ws: Workspace) -> None:
        """Start a worker where none is alive; it goes on after this process."""
        if not queue.live_workers(ws):
            subprocess.Popen(
                self.opener.command("worker", "--until-idle"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )


def _failure(error: ThumbwheelError) -> dict[str, Any]:
    return {"success": False, "error": str(error)}


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _percent(session: TrainingSession) -> float:
    """Return how much of a training is done, 0 if that is unknown."""
    if not session.total_steps:
        return 0.0
    return round(100 * (session.current_step or 0) / session.total_steps, 2)


def _trainings(ws: Workspace) -> list[Job]:
    """Return the jobs that these tools started, the newest first."""
    jobs, _ = queue.jobs(ws, kind="train", limit=MOST)
    return [job for job in jobs if job.key is not None and job.key.startswith(KEY)]


def _name(job: Job) -> str:
    return str(job.key).removeprefix(KEY)


def _agent(slug: str) -> Any:
    from thumbwheel.models.types import Agent

    return Agent.named(slug)


async def _answered(call: Callable[[], Any], text_of: Callable[[Any], str], failure: str) -> str:
    """Return the text of the result, or of the error if the call raises one."""
    try:
        return text_of(await asyncio.to_thread(call))
    except ThumbwheelError as error:
        return f"✗ {failure}: {error}"


async def start_rl_training(
    model_name: str,
    base_model: str = "Qwen/Qwen2.5-0.5B-Instruct",
    method: str = "grpo",
    agent_name: str = "default",
    num_epochs: float = 3,
) -> str:
    """Start the training of a model from the feedback of an agent, and return at once;
    check_training_status tells how far it is.

    model_name: a new name, such as my-assistant-v1; that of a stopped training goes on with it.
    method: grpo (groups of answers to one question) or kto (answers with a thumb)."""

    def start() -> TrainingSession:
        return RLTrainingManager().start(model_name, base_model, method, agent_name, num_epochs)

    def text(session: TrainingSession) -> str:
        lines = [
            "✓ Training started!",
            f"Session ID: {session.session_id}",
            f"Model: {model_name}",
            f"Base: {base_model}",
            f"Method: {method}",
        ]
        return "\n".join(lines)

    return await _answered(start, text, "Failed to start training")


async def stop_rl_training(deploy: bool = True) -> str:
    """Stop the training that runs, at a checkpoint. start_rl_training with the same model name goes
    on where it stopped.

    deploy: where the training had just ended, let the model answer, as switch_rl_model does."""

    def stop() -> TrainingSession:
        return RLTrainingManager().stop(deploy)

    def text(session: TrainingSession) -> str:
        name = session.model_name
        if session.version:
            answers = "It answers now." if deploy else "Let it answer: switch_rl_model"
            return f"✓ {name} was trained already. {answers}"
        return (
            f"✓ Training {session.state.value}, with a checkpoint.\n"
            f"Session: {session.session_id}\n"
            f"Not deployed, because nobody evaluated it. Go on: start_rl_training {name!r}"
        )

    return await _answered(stop, text, "Failed to stop training")


async def check_training_status() -> str:
    """Report the progress of the running training, or the result of the last one."""

    def text(sessions: list[TrainingSession]) -> str:
        if not sessions:
            return "No training sessions found."
        session = sessions[0]
        lines = ["RL Training Status", *_lines(session)]
        if session.state is TrainingState.RUNNING and session.total_steps:
            lines.append(f"Progress: {_percent(session):.1f}%")
            lines.append(f"Step: {session.current_step or 0:.0f}/{session.total_steps:.0f}")
        if session.elapsed_seconds:
            lines.append(f"Elapsed: {session.elapsed_seconds / 60:.1f} minutes")
        return "\n".join(lines)

    return await _answered(RLTrainingManager().sessions, text, "No status")


async def switch_rl_model(model_name: str) -> str:
    """Let a trained model answer: it is evaluated, and served where the gate approves it."""

    def switch() -> TrainingSession:
        return RLTrainingManager().switch(model_name)

    def text(session: TrainingSession) -> str:
        return f"✓ Switched {session.agent_name} to {model_name} ({session.version})"

    return await _answered(switch, text, "Not switched")


async def list_rl_models() -> str:
    """List all models that these tools trained, with the result of each."""

    def text(sessions: list[TrainingSession]) -> str:
        if not sessions:
            return "No trained models found. Use start_rl_training to train a model."
        lines = ["Available RL Models"]
        for session in sessions:
            lines += ["", *_lines(session)]
        return "\n".join([*lines, "", f"Total: {len(sessions)} models"])

    return await _answered(RLTrainingManager().sessions, text, "No list")


def _lines(session: TrainingSession) -> list[str]:
    lines = [
        f"Session: {session.session_id}",
        f"Model: {session.model_name}",
        f"Agent: {session.agent_name}",
        f"Base: {session.base_model}",
        f"Method: {session.method.upper()}",
        f"State: {session.state.value}",
    ]
    further = (
        ("Version", session.version),
        ("Ollama", session.deployed_model_name),
        ("Note", session.message),
        ("Error", session.error_message),
    )
    for name, value in further:
        if value:
            lines.append(f"{name}: {value}")
    return lines


def get_rl_training_tools() -> list[tuple[Callable[..., Any], str, str]]:
    """Return (function, name, description) of each tool."""
    functions = (
        start_rl_training,
        stop_rl_training,
        check_training_status,
        switch_rl_model,
        list_rl_models,
    )
    return [
        (function, function.__name__, " ".join((function.__doc__ or "").split()))
        for function in functions
    ]


async def register_rl_tools(agent: Any) -> None:
    """Give an agent the tools, by its `add_tool`."""
    for function, name, description in get_rl_training_tools():
        await agent.add_tool(function, name=name, description=description)
