"""The canary: a statistical test that an endpoint serves the promoted version, and neither its base
nor the previous version.

**Prompts.** From the agent's own prompts (those that the version was trained on, or else the
previous version) and the built-in probes we keep those on which the greedy
answer of the trained model differs from the base's and from the previous version's. All three are
computed here from the weights.

**Votes.** On each prompt the served answer votes for the reference with which it shares the longer
beginning. Two greedy answers are equal up to the token where the models diverge; after it anything
may follow. So all that a served answer can tell is whose side it takes at that token, and rounding
to four bits seldom changes that, although it makes long answers drift apart. Where the served
answer left both references before that token, log-probabilities decide, if the endpoint gives
them: the vote goes to the reference whose sum over the served answer is nearer. Else there is no
vote.

**Test.** If the served model were the other one in any precision, a vote for the trained model
would come on at most half of the prompts, because rounding noise favours neither side. So the
number of votes for the trained model, among all prompts, is compared with the binomial distribution
of n and 1/2; prompts without a vote count against it. The test passes where as many votes would
come by chance with probability below `ALPHA`. This is exact, holds for any n, and asks more of a
coarsely quantised model without a threshold to set. It is done against the base and against the
previous version.

**Control.** The other model takes the same test itself, as if it were served by mistake: loaded
once more in another precision, so that its answers are not the very ones that it is compared with.
It has to fail.

**Inconclusive** is a test with fewer than `ENOUGH` prompts: even if all of them voted for the
trained model, that could be chance. So is a control that passes: these prompts cannot tell the two
models apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import comb
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import ModelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.prepare import common_system, prompts
from thumbwheel.deploy.types import CanaryVerdict, Endpoint
from thumbwheel.evaluation.local_model import LocalModel, LocalResponder
from thumbwheel.evaluation.responder import ask
from thumbwheel.evaluation.responders import base_of
from thumbwheel.evaluation.types import Ask, AskLikelihood, EvaluationConfig, ModelAnswer
from thumbwheel.export.parity import PROBES
from thumbwheel.llm.client import Client
from thumbwheel.models.types import ModelVersion

ALPHA = 0.05
ENOUGH = 5
"""The smallest n with 2^-n below ALPHA."""
ASKED = 24
"""At most so many prompts are sent to the served model."""
CONTROL_DTYPES = {"float32": "bfloat16", "bfloat16": "float16", "float16": "bfloat16"}
"""Precision of the references -> that of the controls, which rounds differently and takes no more
memory."""
TOKENS = 24
"""Tokens of each answer; models that differ diverge early."""
END = "\0"
"""Marks the end of an answer, so that a complete one differs from one that was cut off."""


@dataclass(frozen=True)
class Duel:
    """The trained model against another one: how many votes for the trained model the served model
    got, and how many the control got."""

    other: str
    prompts: int
    votes: int
    control_votes: int

    @property
    def passed(self) -> bool:
        """Whether the served model is not the other one."""
        return chance(self.votes, self.prompts) < ALPHA

    @property
    def control_passed(self) -> bool:
        """Whether the other model passes as well, so that passing says nothing."""
        return chance(self.control_votes, self.prompts) < ALPHA


@dataclass(frozen=True)
class Canary:
    """The result. It holds no text: prompts are people's data."""

    verdict: CanaryVerdict
    duels: tuple[Duel, ...]
    same: int
    """How many of the `asked` served answers are the trained model's to the letter."""
    asked: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the result for the deployment's record."""
        return asdict(self)

    def summary(self) -> str:
        """Describe the result."""
        parts = [
            f"{duel.votes} of {duel.prompts} answers are the promoted model's and not those of "
            f"{duel.other}"
            for duel in self.duels
        ]
        parts.append(f"{self.same} of {self.asked} to the letter")
        return "; ".join([*parts, *self.notes])


@dataclass(frozen=True)
class _Reference:
    """A model in this process: its greedy answers, and how likely it finds others' answers."""

    name: str
    responder: LocalResponder
    control: LocalResponder | None = None
    """The same model in another precision; None for the trained model, which needs no control."""
    answers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Comparison:
    """Of one prompt: the request, and the greedy answers of the trained model and of another."""

    request: Ask
    trained: str
    other: str


@dataclass(frozen=True)
class _ServedAnswer:
    """`logps` of its tokens; None where the endpoint gives none."""

    text: str
    logps: list[float] | None


def check(
    ws: Workspace,
    model_version: ModelVersion,
    previous: ModelVersion | None,
    endpoint: Endpoint,
    secret: str | None,
) -> Canary:
    """Ask the model at `endpoint`, which should be `model_version`, and compare. Raises ModelError
    if it does not answer."""
    if model_version.endpoint is not None:
        return Canary(
            CanaryVerdict.UNOPPOSED, (), 0, 0, ("somebody else serves it: nothing to compare",)
        )

    # Greedy answers of all references to all prompts.
    trained, others = _references(ws, model_version, previous)
    agent_id = model_version.agent_id
    requests = [Ask(prompt, TOKENS) for prompt in _prompts(ws, model_version, previous)]
    for reference in (trained, *others):
        answers = ask(ws, agent_id, reference.responder, requests, "canary answers")
        reference.answers.extend(_comparable(answer) for answer in answers)

    # Those on which the trained model differs from every other one go to the endpoint.
    telling = _telling(trained, others)[:ASKED]
    served = _served_answers(endpoint, secret, [requests[index] for index in telling])
    same = 0
    for index, answer in zip(telling, served, strict=True):
        same += answer.text == trained.answers[index]
    if not others or len(telling) < ENOUGH:
        return _undecided(others, len(telling), same)

    # Votes, and then those of the controls, which need the memory of the references.
    comparisons: dict[str, list[_Comparison]] = {}
    votes: dict[str, int] = {}
    for other in others:
        comparisons[other.name] = [
            _Comparison(requests[index], trained.answers[index], other.answers[index])
            for index in telling
        ]
        votes[other.name] = _votes(ws, agent_id, trained, other, comparisons[other.name], served)
    for reference in (trained, *others):
        reference.responder.close()
    duels = []
    for other in others:
        control_votes = _control_votes(ws, agent_id, other, comparisons[other.name])
        duels.append(Duel(other.name, len(telling), votes[other.name], control_votes))

    if not all(duel.passed for duel in duels):
        return Canary(CanaryVerdict.FAILED, tuple(duels), same, len(telling))
    undetectable = [duel.other for duel in duels if duel.control_passed]
    if undetectable:
        note = (
            f"{' and '.join(undetectable)} in another precision would pass as well, so these "
            "prompts cannot tell"
        )
        return Canary(CanaryVerdict.INCONCLUSIVE, tuple(duels), same, len(telling), (note,))
    return Canary(CanaryVerdict.PASSED, tuple(duels), same, len(telling))


def _telling(trained: _Reference, others: Sequence[_Reference]) -> list[int]:
    """Return the indices of the prompts that the trained model answers as no other model does."""
    telling = []
    for index, text in enumerate(trained.answers):
        if text and all(text != other.answers[index] for other in others):
            telling.append(index)
    return telling


def _prompts(
    ws: Workspace, model_version: ModelVersion, previous: ModelVersion | None
) -> list[list[dict[str, Any]]]:
    """Return the agent's own prompts, and the built-in probes behind the agent's system message.

    A version without a dataset, as a base, has none of its own. Then those of the previous version
    are taken: what was trained on it may answer general probes as it does.
    """
    agent_prompts = prompts(ws, model_version)
    if not agent_prompts and previous is not None:
        agent_prompts = prompts(ws, previous)
    system = common_system(agent_prompts)  # a target may put it before prompts that have none
    system_messages = [{"role": "system", "content": system}] if system else []
    probes = []
    for probe in PROBES:
        has_system = probe[0]["role"] == "system"
        probes.append(probe if has_system else [*system_messages, *probe])
    return [*agent_prompts, *probes]


def _references(
    ws: Workspace, model_version: ModelVersion, previous: ModelVersion | None
) -> tuple[_Reference, list[_Reference]]:
    """Return the trained model, and the models that might be served in its place."""
    config = EvaluationConfig(max_new_tokens=TOKENS)
    base = base_of(ws, model_version)
    shared = LocalModel(ws, base, [model_version], config)
    trained = _Reference(model_version.name, shared.responder(model_version))
    others = []
    if model_version.adapter is not None:
        control = _control(ws, base, base, config)
        others.append(_Reference(f"the base {base.name}", shared.responder(base), control))
    if previous is None or previous.endpoint is not None:
        return trained, others  # what others serve cannot be served here by mistake
    if previous.adapter is not None:
        differs = previous.id != model_version.id
    else:
        differs = previous.base_fingerprint != model_version.base_fingerprint
    if differs:
        # Loaded by itself, because PEFT holds adapters of one kind only.
        previous_base = base_of(ws, previous) if previous.adapter is not None else previous
        responder = LocalModel(ws, previous_base, [previous], config).responder(previous)
        control = _control(ws, previous_base, previous, config)
        others.append(_Reference(f"the previous {previous.name}", responder, control))
    return trained, others


def _control(
    ws: Workspace, base: ModelVersion, version: ModelVersion, config: EvaluationConfig
) -> LocalResponder:
    """Return a responder for `version` in another precision than the one in which `config` answers
    with it."""
    precision = CONTROL_DTYPES[LocalModel(ws, base, [version], config).dtype]
    rounded = config.model_copy(update={"dtype": precision})
    return LocalModel(ws, base, [version], rounded).responder(version)


def _undecided(others: Sequence[_Reference], telling: int, same: int) -> Canary:
    if not others:
        note = "nothing else could be served: it is the base, and nothing was before it"
        return Canary(CanaryVerdict.UNOPPOSED, (), same, telling, (note,))
    names = " and ".join(other.name for other in others)
    note = f"only {telling} prompts tell it from {names}, and {ENOUGH} are needed"
    return Canary(CanaryVerdict.INCONCLUSIVE, (), same, telling, (note,))


def _votes(
    ws: Workspace,
    agent_id: str,
    trained: _Reference,
    other: _Reference,
    comparisons: Sequence[_Comparison],
    served: Sequence[_ServedAnswer],
) -> int:
    """Count the served answers that vote for the trained model: by their text, or if that does not
    decide, by their log-probabilities."""
    votes = 0
    open_requests: list[AskLikelihood] = []
    open_logps: list[list[float]] = []
    for comparison, answer in zip(comparisons, served, strict=True):
        text_vote = vote(answer.text, comparison.trained, comparison.other)
        votes += text_vote == 1
        if text_vote == 0 and answer.logps:
            text = answer.text.removesuffix(END)
            open_requests.append(
                AskLikelihood(comparison.request.prompt, (text,), finish=("length",))
            )
            open_logps.append(answer.logps)
    if not open_requests:
        return votes
    purpose = "log-probabilities"
    trained_sums = ask(ws, agent_id, trained.responder, open_requests, purpose)
    other_sums = ask(ws, agent_id, other.responder, open_requests, purpose)
    for logps, trained_sum, other_sum in zip(open_logps, trained_sums, other_sums, strict=True):
        votes += _logp_vote(logps, trained_sum, other_sum) == 1
    return votes


def _control_votes(
    ws: Workspace, agent_id: str, other: _Reference, comparisons: Sequence[_Comparison]
) -> int:
    """Count the votes for the trained model that the other one gets when it answers in another
    precision."""
    assert other.control is not None  # noqa: S101 - narrows the type: only the trained model has none
    requests = [comparison.request for comparison in comparisons]
    answers = ask(ws, agent_id, other.control, requests, "canary answers of the control")
    other.control.close()
    votes = 0
    for comparison, answer in zip(comparisons, answers, strict=True):
        votes += vote(_comparable(answer), comparison.trained, comparison.other) == 1
    return votes


def vote(served: str, trained: str, other: str) -> int:
    """Return 1 for the trained model, -1 for the other, 0 if `served` shares as much with the one
    as with the other.

    >>> vote("a cat sat", "a cat ran", "a dog ran"), vote("a dog", "a cat", "a dog ran")
    (1, -1)
    >>> vote("no", "a cat", "a dog")
    0
    """
    with_trained = _shared_length(served, trained)
    with_other = _shared_length(served, other)
    return (with_trained > with_other) - (with_trained < with_other)


def chance(votes: int, n: int) -> float:
    """Return P(at least `votes` of `n`) if each comes with probability 1/2.

    >>> chance(7, 7), chance(0, 5)
    (0.0078125, 1.0)
    """
    return float(sum(comb(n, k) for k in range(votes, n + 1)) / 2**n)


def _shared_length(first: str, second: str) -> int:
    """Count the characters at the beginning that both texts share."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))


def _logp_vote(
    logps: Sequence[float],
    trained: Sequence[tuple[float, int]],
    other: Sequence[tuple[float, int]],
) -> int:
    """Return the vote by log-probabilities: `logps` of the served answer's tokens, and of each
    reference (sum, number of tokens). It is 0 if the endpoint cut the answer into other tokens; its
    end token does not count."""
    if not trained or not other:
        return 0
    trained_sum, tokens = trained[0]
    other_sum, _ = other[0]
    if len(logps) - tokens not in (0, 1):
        return 0
    served_sum = sum(logps[:tokens])
    to_trained = abs(served_sum - trained_sum)
    to_other = abs(served_sum - other_sum)
    return (to_trained < to_other) - (to_trained > to_other)


def _comparable(answers: tuple[ModelAnswer, ...]) -> str:
    """Return an answer in the form in which answers are compared; empty if there is none."""
    return "" if not answers else _marked(answers[0].text, answers[0].finish)


def _marked(text: str, finish: str) -> str:
    """Return `text` with its end marked. Replacement characters (bytes that are no whole character)
    are removed: some servers show them, others drop them."""
    return text.replace("\ufffd", "") + (END if finish == "stop" else "")


def _served_answers(
    endpoint: Endpoint, secret: str | None, requests: Sequence[Ask]
) -> list[_ServedAnswer]:
    """Return the endpoint's answer to each request."""
    client = Client(endpoint.url, endpoint.model, api_key=secret)
    answers = []
    try:
        with log.progress("canary", len(requests), "prompts") as advance:
            for request in requests:
                body = {
                    "messages": request.prompt,
                    "max_tokens": request.max_new_tokens,
                    "temperature": 0,
                    "seed": 0,
                    "logprobs": True,
                    **endpoint.body,
                }
                answers.append(_parse(client.post("chat/completions", body), endpoint))
                advance()
    finally:
        client.close()
    return answers


def _parse(reply: dict[str, Any], endpoint: Endpoint) -> _ServedAnswer:
    try:
        choice = reply["choices"][0]
        text = _marked(str(choice["message"]["content"] or ""), str(choice["finish_reason"]))
        tokens = (choice.get("logprobs") or {}).get("content")
        logps = [float(token["logprob"]) for token in tokens] if tokens else None
    except (KeyError, IndexError, TypeError, ValueError):
        raise ModelError(
            f"model {endpoint.model!r} at {endpoint.url}",
            f"its reply does not have OpenAI's format: {str(reply)[:200]}",
            "Check what listens at that address",
        ) from None
    return _ServedAnswer(text, logps)


def accepted(result: Canary, reason: str) -> Canary:
    """Return an inconclusive result with the note that somebody accepted it."""
    return replace(result, notes=(*result.notes, f"accepted by {reason}"))
