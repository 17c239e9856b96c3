"""The API of the n3 server as a dialect: feedback, training of a policy, and the trained policies,
in both forms of its paths.

Agents are ours, and feedback of an unknown one begins it. A training answers as theirs does, once
it has ended; with `?wait=SECONDS` it answers earlier with 202 and where to look for the job, which
goes on either way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from statistics import fmean, pstdev
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from thumbwheel.access.needs import needs
from thumbwheel.access.types import Principal
from thumbwheel.app.job_paths import without_folders
from thumbwheel.app.served_home import accepted_response, awaited_result
from thumbwheel.capture.feedback import scores_in_force
from thumbwheel.compat.n3.config import TrainingConfig
from thumbwheel.compat.n3.jobs import TrainPolicySpec
from thumbwheel.compat.n3.policies import PolicyVersion, policy_versions
from thumbwheel.compat.n3.readiness import readiness
from thumbwheel.compat.received_rows import (
    AgentName,
    Row,
    Text,
    rater_of,
    require_stored,
    store_rows,
)
from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, InputError, NotFound, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.queue import job_of_key
from thumbwheel.jobs.types import Job
from thumbwheel.loop.cycle_checks import default_base
from thumbwheel.loop.cycle_types import CycleConfig
from thumbwheel.models.base import in_hub_cache
from thumbwheel.models.versions import require_agent

SOURCE = "n3"
MOST_ROWS = 10_000
"""Of one request."""
KEY_HEADER = "idempotency-key"


class FeedbackSubmission(BaseModel):
    """A scored answer."""

    model_config = ConfigDict(allow_inf_nan=False)

    prompt: Text = Field(min_length=1)
    response: Text = Field(min_length=1)
    score: float = Field(ge=0, le=1)
    run_id: Text = Field(alias="runId", min_length=1, max_length=512)
    notes: Text | None = None
    project_id: Text | None = Field(default=None, alias="projectId", max_length=512)
    """Stored with the answer, as their table has it."""


class TrainingOrder(BaseModel):
    """What to train."""

    model_config = ConfigDict(allow_inf_nan=False)

    dry_run: bool = Field(default=False, alias="dryRun")
    max_steps: int = Field(default=1000, alias="maxSteps", ge=1, le=10**6)
    learning_rate: float | None = Field(default=None, alias="learningRate", gt=0, le=1)
    """Unset, the one that suits the base."""
    base_model: str | None = Field(default=None, alias="baseModel", min_length=1, max_length=512)
    """A model in the home's folder `bases`; unset, the agent's own or that of the settings."""


def add_routes(routes: APIRouter) -> None:
    """Add the routes."""
    rate, read, run = needs("rate", ingest=True), needs("read"), needs("run")
    tags: list[Any] = ["n3"]
    for prefix, form in (("/api/policies", "policies"), ("/api", "short")):
        routes.add_api_route(
            f"{prefix}/feedback/{{agent}}",
            submit_feedback,
            methods=["POST"],
            dependencies=[rate],
            operation_id=f"n3.{form}.feedback",
            summary="Send one scored answer, or a list of them",
            response_model=None,
            tags=tags,
        )
        routes.add_api_route(
            f"{prefix}/train_policy/{{agent}}",
            train_policy,
            methods=["POST"],
            dependencies=[run],
            operation_id=f"n3.{form}.train_policy",
            summary="Train a reward model from the scores, and a policy against it",
            response_model=None,
            responses={
                202: {"description": "It is a job that goes on; Location says where to look."},
                500: {"description": "The training failed; `detail` says why."},
            },
            tags=tags,
        )
    routes.add_api_route(
        "/api/policies/{agent}",
        list_policies,
        methods=["GET"],
        dependencies=[read],
        operation_id="n3.policies",
        summary="The trained policies of an agent, the newest first",
        response_model=None,
        tags=tags,
    )


def _form(body: Any) -> str:
    """Return which form of feedback a body has, so that an error is about that form."""
    return "list[FeedbackSubmission]" if isinstance(body, list) else "FeedbackSubmission"


def submit_feedback(
    request: Request,
    agent: AgentName,
    feedback: Annotated[
        Annotated[FeedbackSubmission, Tag("FeedbackSubmission")]
        | Annotated[
            list[FeedbackSubmission],
            Field(min_length=1, max_length=MOST_ROWS),
            Tag("list[FeedbackSubmission]"),
        ],
        Discriminator(_form),
        Body(),
    ],
) -> Any:
    """Store feedback; each is a trace and its score."""
    submissions = feedback if isinstance(feedback, list) else [feedback]
    slug = ids.slug_of(agent)
    request.state.principal.require("call", slug)  # each brings a trace, too
    now = datetime.now(UTC)
    names = [_name(request, slug, index) for index in range(len(submissions))]
    groups = []
    rater = rater_of(request, None)
    for name, submission in zip(names, submissions, strict=True):
        groups.append(_rows(name, submission, rater, now))
    require_stored(store_rows(request, slug, SOURCE, groups))
    answers = []
    for name, submission in zip(names, submissions, strict=True):
        answers.append(
            {
                "status": "submitted",
                "id": name,
                "agentId": agent,
                "score": submission.score,
                "createdAt": now.isoformat(),
            }
        )
    return answers if isinstance(feedback, list) else answers[0]


def _key(request: Request) -> str | None:
    """Return the key by which a repeated request is recognised, or None. Raises InputError for a
    key of a wrong length."""
    key = request.headers.get(KEY_HEADER)
    if key is not None and not 1 <= len(key) <= 400:
        raise InputError(f"header {KEY_HEADER}", f"it has {len(key)} characters", "Give 1 to 400")
    return key


def _name(request: Request, agent: str, index: int) -> str:
    """Return an id, which is the same each time for a request that is repeated with its key."""
    key = _key(request)
    if key is None:
        return ids.new("fb")
    return ids.derived("fb", request.state.principal.id, agent, key, str(index))


def _rows(name: str, submission: FeedbackSubmission, rater: str | None, now: datetime) -> list[Row]:
    received = now.isoformat()
    trace: Row = {
        "type": "trace",
        "id": name,
        "session": submission.run_id,
        "input": submission.prompt,
        "output": submission.response,
        "received_at": received,
    }
    if submission.project_id is not None:
        trace["metadata"] = {"projectId": submission.project_id}
    score = {
        "type": "feedback",
        "id": name,
        "target": {"trace": name},
        "kind": "score",
        "value": submission.score,
        "scale": {"min": 0.0, "max": 1.0},
        "received_at": received,
    }
    if rater is not None:
        score["rater"] = rater
    if submission.notes:
        score["comment"] = submission.notes
    return [trace, score]


async def train_policy(
    request: Request,
    agent: AgentName,
    order: Annotated[TrainingOrder, Body(default_factory=TrainingOrder)],
    wait: Annotated[
        float | None,
        Query(ge=0, le=10**6, description="Seconds to wait for the end; unset, until it comes."),
    ] = None,
) -> Any:
    """Train, or say what a training would be. Sent again with its idempotency key, it is the same
    training."""
    ws: Workspace = request.app.state.workspace
    slug = ids.slug_of(agent)
    key = _key(request)
    if key is not None:
        key = ids.derived("key", request.state.principal.id, "n3", slug, key)
    earlier = None if key is None else await run_in_threadpool(job_of_key, ws, key)
    scores = await run_in_threadpool(_scores, ws, slug)
    if earlier is None:
        counted = await run_in_threadpool(readiness, ws, slug, scores)
        shortage = counted.shortage()
        if shortage is not None:
            return _refusal(HTTPStatus.BAD_REQUEST, shortage)
    ordered = {
        "max_steps": order.max_steps,
        "learning_rate": order.learning_rate,
        "dry_run": order.dry_run,
    }
    if earlier is None:
        base = await run_in_threadpool(_base, ws, slug, order.base_model)
        spec: dict[str, Any] = {"agent": slug, "base": base, **ordered}
    else:
        # what it meant at first, whatever is live by now
        spec = dict(earlier.spec)
        if any(spec.get(name) != value for name, value in ordered.items()):
            raise Conflict(
                f"header {KEY_HEADER}",
                f"job {earlier.id} has this key, and trains something else",
                "Take a new key for a new order",
            )
    try:
        seconds = math.inf if wait is None else wait
        result = await awaited_result(request, "train policy", spec, seconds, key)
    except Conflict:
        raise  # it was cancelled
    except ThumbwheelError as error:
        why = _without_folders(request, str(error))
        return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"Training failed: {why}")
    if isinstance(result, Job):
        return accepted_response(result)
    if order.dry_run:
        estimate = _estimate(TrainPolicySpec(**spec), scores, result)
        estimate["modelConfig"]["base_model"] = _without_folders(request, spec["base"])
        return estimate
    policy = result["policy"]
    return {
        "status": "trained",
        "policyId": policy["id"],
        "version": policy["version"],
        "modelPath": _without_folders(request, result["model_path"]),
        "rewardModelPath": _without_folders(request, result["reward_model_path"]),
        "feedbackCount": policy["feedback_count"],
        "trainingSteps": result["training_steps"],
        "rewardMean": policy["reward_mean"],
        "rewardStd": policy["reward_std"],
    }


def _without_folders(request: Request, text: str) -> str:
    """Return the text; for who does not own the home, files are named from there."""
    ws: Workspace = request.app.state.workspace
    principal: Principal = request.state.principal
    if principal.may("own", None):
        return text
    shown: str = without_folders(text, ws.home.path)
    return shown


def _estimate(
    spec: TrainPolicySpec, scores: Sequence[float], result: Mapping[str, Any]
) -> dict[str, Any]:
    config = spec.config()
    return {
        "status": "dry_run",
        "feedbackCount": len(scores),
        "estimatedSteps": spec.max_steps,
        "estimatedTimeMinutes": result["minutes"],
        "scoreMean": fmean(scores),
        "scoreStd": pstdev(scores),
        "modelConfig": {
            "use_lora": config.use_lora,
            "lora_r": config.lora_r,
            "learning_rate": result["learning_rate"],
        },
    }


def _scores(ws: Workspace, agent: str) -> list[float]:
    try:
        return scores_in_force(ws, agent)
    except NotFound:
        return []


def _base(ws: Workspace, agent: str, name: str | None) -> str:
    """Return the model of this name in the home, else the base that the settings name, else that of
    the agent's versions, else theirs (gpt2) where this machine has it.

    Raises NotFound, and Conflict where there is none; nothing is downloaded because a client asks.
    """
    if name is not None:
        folder = ws.home.bases / ids.slug(name, "base model")
        if not folder.is_dir():
            raise NotFound(
                f"base model {name!r}",
                "there is none of that name in HOME/bases",
                "Link it there, in the server's home: ln -s /path/of/the/model HOME/bases/NAME",
            )
        return str(folder.resolve())
    base = ws.settings(CycleConfig, "loop").base
    if base is not None:
        return base
    try:
        return default_base(ws, require_agent(ws, agent))
    except InputError:
        default = TrainingConfig().base_model
        if in_hub_cache(default):
            return default
        raise Conflict(
            f"the policy of agent {agent!r}",
            "none of its versions has weights on this machine, the settings name no model, and "
            f"{default} is not in the Hugging Face cache",
            "Link a model into HOME/bases and send its name as baseModel with this order, or name "
            "it in the server's thumbwheel.yaml (section loop, setting base)",
        ) from None


def _refusal(status: HTTPStatus, detail: str) -> Response:
    """Return an error in the form that the system's clients read."""
    content = {
        "type": "about:blank",
        "title": status.phrase,
        "status": int(status),
        "detail": detail.encode("utf-8", "backslashreplace").decode(),
    }
    return JSONResponse(content, int(status), media_type="application/problem+json")


def list_policies(request: Request, agent: AgentName) -> Any:
    """List the trained versions; none for an unknown agent."""
    ws: Workspace = request.app.state.workspace
    try:
        policies = policy_versions(ws, ids.slug_of(agent))
    except NotFound:
        return []
    return [_item(agent, policy) for policy in policies]


def _item(agent: str, policy: PolicyVersion) -> dict[str, Any]:
    metrics = {
        "feedbackCount": policy.feedback_count,
        "rewardMean": policy.reward_mean,
        "rewardStd": policy.reward_std,
    }
    return {
        "id": policy.id,
        "agentId": agent,
        "version": policy.version,
        "createdAt": policy.created_at.isoformat(),
        "metrics": metrics,
        "trainedOn": metrics if policy.feedback_count else None,
    }
