"""The canary: proof that what answers is the version that was promoted, and neither its base nor
the version before it.

**Prompts.** Of the agent's own prompts and the built-in probes those are kept on which the trained
model's greedy answer differs from the base's and from the previous version's, all three computed
here from the weights themselves.

**Votes.** On each of them the served answer votes for the reference with which it shares the longer
beginning. Two greedy answers are equal up to the token where the models part, and after it anything
may follow; so whose side the served one takes at that token is all that it can tell, and a rounding
to four bits, which makes long answers drift apart, seldom changes it. Where it had drifted away
from both before, the log-probabilities decide, if the endpoint gives them: the reference whose sum
over the served answer is nearer. Else there is no vote.

**Test.** Were the served model the other one in any precision, a vote for the trained model would
come in at most half of the prompts, for rounding noise has no side. So the number of votes for the
trained model among all prompts, those without a vote counted against it, is compared with the
binomial distribution of n and 1/2: it passes where as many would come by chance with less than
`ALPHA`. That is exact, holds for any n, and asks more of a coarsely quantised model without any
threshold to set. It is done against the base and against the previous version.

**Control.** The other model is put to the same test itself, as it would answer if it were served by
mistake: loaded once more in another precision, so that its answers are not the ones which it is
compared with. It has to fail.

**Inconclusive** is fewer than `ENOUGH` telling prompts: even if all of them voted for the trained
model, chance could have done it. So is a control that passes: these prompts cannot tell the two
models apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import comb
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import ModelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.prepare import common_system, prompts
from thumbwheel.deploy.types import Endpoint
from thumbwheel.evaluation.local_model import LocalModel, LocalResponder
from thumbwheel.evaluation.responder import ask
from thumbwheel.evaluation.responders import base_of
from thumbwheel.evaluation.types import Answer, Ask, AskLikelihood, EvaluationConfig
from thumbwheel.export.parity import PROBES
from thumbwheel.llm.client import Client
from thumbwheel.models.types import ModelVersion
from thumbwheel.models.versions import require_agent

ALPHA = 0.05
ENOUGH = 5
"""The least n with 2^-n below ALPHA."""
ASKED = 24
"""Most prompts that the served model is asked."""
CONTROL_DTYPES = {"float32": "bfloat16", "bfloat16": "float16", "float16": "bfloat16"}
"""Precision of the references -> that of the controls, which rounds otherwise and takes no more
memory."""
TOKENS = 24
"""Of each answer; models that differ part early."""
END = "\0"
"""Stands for the end of an answer, so that one which goes on differs from one which does not."""


class Verdict(StrEnum):
    """`unopposed`: there is nothing else that could be served, for it is the base and nothing was
    live."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    UNOPPOSED = "unopposed"


@dataclass(frozen=True)
class Duel:
    """The trained model against another; the votes for the trained model that the served one got,
    and that the control got."""

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
    """What was found. No text is kept: prompts are people's data."""

    verdict: Verdict
    duels: tuple[Duel, ...]
    same: int
    """Served answers that are the trained model's to the letter, of `asked`."""
    asked: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)

    def says(self) -> str:
        """In words."""
        duels = [
            f"{one.votes} of {one.prompts} answers are the promoted model's and not those of "
            f"{one.other}"
            for one in self.duels
        ]
        return "; ".join([*duels, f"{self.same} of {self.asked} to the letter", *self.notes])


@dataclass(frozen=True)
class _Reference:
    """Greedy answers of a model in this process, and how likely it finds others."""

    name: str
    side: LocalResponder
    control: LocalResponder | None = None
    """The same model in another precision; None for the trained model, which needs none."""
    answers: list[str] = field(default_factory=list)


def check(
    ws: Workspace,
    one: ModelVersion,
    previous: ModelVersion | None,
    endpoint: Endpoint,
    secret: str | None,
) -> Canary:
    """Ask the model at `endpoint`, which should be `one`, and compare; raises ModelError where it
    gives no answers."""
    trained, others = _references(ws, one, previous)
    agent_id = require_agent(ws, one.agent)
    own = prompts(ws, one)
    system = common_system(own)  # what a target may put before prompts without instructions
    lead = [{"role": "system", "content": system}] if system else []
    probes = [probe if probe[0]["role"] == "system" else [*lead, *probe] for probe in PROBES]
    asks = [Ask(prompt, TOKENS) for prompt in [*own, *probes]]
    for reference in (trained, *others):
        reference.answers.extend(
            map(_comparable, ask(ws, agent_id, reference.side, asks, "canary answers"))
        )
    telling = [
        at
        for at, text in enumerate(trained.answers)
        if text and all(text != other.answers[at] for other in others)
    ][:ASKED]
    served = _served(endpoint, secret, [asks[at] for at in telling])
    same = sum(text == trained.answers[at] for at, (text, _) in zip(telling, served, strict=True))
    if not others or len(telling) < ENOUGH:
        return _undecided(others, len(telling), same)
    asked = [asks[at] for at in telling]
    votes = {
        other.name: _votes(ws, agent_id, trained, other, asked, telling, served) for other in others
    }
    for reference in (trained, *others):
        reference.side.close()  # its memory is the control's
    duels = tuple(
        Duel(
            other.name,
            len(telling),
            votes[other.name],
            _control_votes(ws, agent_id, trained, other, asked, telling),
        )
        for other in others
    )
    undetectable = tuple(duel.other for duel in duels if duel.control_passed)
    if not all(duel.passed for duel in duels):
        return Canary(Verdict.FAILED, duels, same, len(telling))
    if undetectable:
        note = (
            f"{' and '.join(undetectable)} in another precision would pass as well, so these "
            "prompts cannot tell"
        )
        return Canary(Verdict.INCONCLUSIVE, duels, same, len(telling), (note,))
    return Canary(Verdict.PASSED, duels, same, len(telling))


def _references(
    ws: Workspace, one: ModelVersion, previous: ModelVersion | None
) -> tuple[_Reference, list[_Reference]]:
    config, base = EvaluationConfig(max_new_tokens=TOKENS), base_of(ws, one)
    shared = LocalModel(ws, base, [one], config)
    trained, others = _Reference(one.name, shared.responder(one)), []
    if one.adapter is not None:
        others.append(
            _Reference(
                f"the base {base.name}", shared.responder(base), _control(ws, base, base, config)
            )
        )
    if (
        previous is None or previous.endpoint is not None
    ):  # what others serve cannot be served here by mistake
        return trained, others
    is_other_adapter = previous.adapter is not None and previous.id != one.id
    is_other_base = previous.adapter is None and previous.base_fingerprint != one.base_fingerprint
    if is_other_adapter or is_other_base:
        # loaded by itself: PEFT holds adapters of one kind only
        previous_base = base_of(ws, previous) if is_other_adapter else previous
        side = LocalModel(ws, previous_base, [previous], config).responder(previous)
        others.append(
            _Reference(
                f"the previous {previous.name}", side, _control(ws, previous_base, previous, config)
            )
        )
    return trained, others


def _control(
    ws: Workspace, base: ModelVersion, version: ModelVersion, config: EvaluationConfig
) -> LocalResponder:
    """`version` in another precision than the one in which `config` answers with it."""
    precision = CONTROL_DTYPES[LocalModel(ws, base, [version], config).dtype]
    rounded = config.model_copy(update={"dtype": precision})
    return LocalModel(ws, base, [version], rounded).responder(version)


def _undecided(others: Sequence[_Reference], telling: int, same: int) -> Canary:
    if not others:
        return Canary(
            Verdict.UNOPPOSED,
            (),
            same,
            telling,
            ("nothing else could be served: it is the base, and nothing was before it",),
        )
    note = (
        f"only {telling} prompts tell it from {' and '.join(one.name for one in others)}, and "
        f"{ENOUGH} are needed"
    )
    return Canary(Verdict.INCONCLUSIVE, (), same, telling, (note,))


def _votes(
    ws: Workspace,
    agent_id: str,
    trained: _Reference,
    other: _Reference,
    asks: list[Ask],
    telling: list[int],
    served: list[tuple[str, Any]],
) -> int:
    """How many of the served answers vote for the trained model; where the text does not tell, by
    log-probabilities."""
    votes = [
        vote(text, trained.answers[at], other.answers[at])
        for at, (text, _) in zip(telling, served, strict=True)
    ]
    open_ = [at for at, found in enumerate(votes) if found == 0 and served[at][1]]
    if open_:
        known = [
            AskLikelihood(asks[at].prompt, (served[at][0].removesuffix(END),), finish=("length",))
            for at in open_
        ]
        sums = [
            ask(ws, agent_id, side, known, "log-probabilities")
            for side in (trained.side, other.side)
        ]
        for at, mine, theirs in zip(open_, *sums, strict=True):
            votes[at] = _nearer(served[at][1], mine, theirs)
    return votes.count(1)


def _control_votes(
    ws: Workspace,
    agent_id: str,
    trained: _Reference,
    other: _Reference,
    asks: list[Ask],
    telling: list[int],
) -> int:
    """How many votes for the trained model the other one gets, answering in another precision."""
    assert other.control is not None  # noqa: S101 - narrows the type: only the trained model has none
    answers = ask(ws, agent_id, other.control, asks, "canary answers of the control")
    other.control.close()
    votes = [
        vote(_comparable(answer), trained.answers[at], other.answers[at])
        for at, answer in zip(telling, answers, strict=True)
    ]
    return votes.count(1)


def vote(served: str, trained: str, other: str) -> int:
    """1 for the trained model, -1 for the other, 0 where `served` parted from both at the same
    place.

    >>> vote("a cat sat", "a cat ran", "a dog ran"), vote("a dog", "a cat", "a dog ran"), vote("no",
    "a cat", "a dog") (1, -1, 0)
    """
    mine, theirs = _shared(served, trained), _shared(served, other)
    return (mine > theirs) - (mine < theirs)


def chance(votes: int, n: int) -> float:
    """P(at least `votes` of `n`) where each comes with probability 1/2.

    >>> chance(7, 7), chance(0, 5)
    (0.0078125, 1.0)
    """
    return float(sum(comb(n, k) for k in range(votes, n + 1)) / 2**n)


def _shared(one: str, two: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )


def _nearer(
    logps: Sequence[float], mine: Sequence[tuple[float, int]], theirs: Sequence[tuple[float, int]]
) -> int:
    """The vote by log-probabilities; none where the endpoint cut the answer into other tokens, its
    end token left aside."""
    if not mine or not theirs or len(logps) - mine[0][1] not in (0, 1):
        return 0
    total = sum(logps[: mine[0][1]])
    one, two = abs(total - mine[0][0]), abs(total - theirs[0][0])
    return (one < two) - (one > two)


def _comparable(answers: tuple[Answer, ...]) -> str:
    """An answer as both sides can have it: bytes that are no whole character are shown by some and
    dropped by others."""
    return "" if not answers else _marked(answers[0].text, answers[0].finish)


def _marked(text: str, finish: str) -> str:
    return text.replace("\ufffd", "") + (END if finish == "stop" else "")


def _served(
    endpoint: Endpoint, secret: str | None, asks: Sequence[Ask]
) -> list[tuple[str, list[float] | None]]:
    """(answer, log-probabilities of its tokens where the endpoint gives them) to each."""
    client, found = Client(endpoint.url, endpoint.model, api_key=secret), []
    try:
        with log.progress("canary", len(asks), "prompts") as advance:
            for one in asks:
                body = {
                    "messages": one.prompt,
                    "max_tokens": one.max_new_tokens,
                    "temperature": 0,
                    "seed": 0,
                    "logprobs": True,
                    **endpoint.body,
                }
                found.append(_answer(client.post("chat/completions", body), endpoint))
                advance()
    finally:
        client.close()
    return found


def _answer(reply: dict[str, Any], endpoint: Endpoint) -> tuple[str, list[float] | None]:
    try:
        choice = reply["choices"][0]
        tokens = (choice.get("logprobs") or {}).get("content")
        logps = [float(one["logprob"]) for one in tokens] if tokens else None
        return _marked(str(choice["message"]["content"] or ""), str(choice["finish_reason"])), logps
    except (KeyError, IndexError, TypeError, ValueError):
        what = f"model {endpoint.model!r} at {endpoint.url}"
        raise ModelError(
            what,
            f"its reply is none of OpenAI's form: {str(reply)[:200]}",
            "Check what listens at that address",
        ) from None


def accepted(found: Canary, by: str) -> Canary:
    """An inconclusive one that somebody takes as it is."""
    return replace(found, notes=(*found.notes, f"accepted by {by}"))
