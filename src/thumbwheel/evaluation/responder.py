"""The contract of a responder: something that answers prompts and, where it can, scores given
texts.

Responders are: a base with an adapter in this process (`local_model.py`), a server (`served.py`: a
GGUF file through llama-server, or an endpoint), and recorded answers (`recorded.py`). Every
question goes through `ask`, which stores the replies. So the same question to the same model is
never paid for twice, and a stopped evaluation goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from thumbwheel.core import ids, log
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.evaluation import store
from thumbwheel.evaluation.types import Answers, Ask, AskLikelihood, ModelAnswer, Sums
from thumbwheel.jobs.part_types import PartOutcome
from thumbwheel.jobs.parts import share

ANSWERS, LIKELIHOODS = "answers", "log_probabilities"
"""Kinds of replies."""
LENGTH_RATIO = 2
SHORT = 200
"""Characters. The longest question of a chunk is at most LENGTH_RATIO * (shortest + SHORT) long."""


class Responder(Protocol):
    """One model, served in one way."""

    @property
    def name(self) -> str:
        """What people call it: v3, v3 as gguf:model.gguf."""

    @property
    def identity(self) -> str:
        """Fingerprint of all that its replies depend on besides the question."""

    @property
    def batch(self) -> int:
        """How many prompts to ask at once."""

    @property
    def scores(self) -> bool:
        """Whether it can compute log-probabilities of given texts."""

    def recipe(self) -> dict[str, Any] | None:
        """Return what another host needs to be the same responder (answer_parts.py), as JSON; None
        if only this process can ask it."""

    def answers(self, asks: Sequence[Ask]) -> list[Answers]:
        """Generate answers, in the order of the questions."""

    def log_probabilities(self, asks: Sequence[AskLikelihood]) -> list[Sums]:
        """Return the log-probabilities of given texts; called only if it `scores`."""

    def close(self) -> None:
        """Stop processes and close connections."""


def ask(
    ws: Workspace,
    agent_id: str,
    responder: Responder,
    asks: Sequence[Ask | AskLikelihood],
    what: str,
) -> list[Any]:
    """Return the replies of `responder` to `asks` (all of one kind), in their order. Stored replies
    are reused; new ones are stored chunk by chunk. In a job of a cluster, idle workers of other
    hosts ask some of the chunks.

    The order in which missing replies are asked for depends on the questions alone. So an
    evaluation that was stopped asks the rest in the same batches as it would have.
    """
    kind = kind_of(asks)
    keys = [key_of(question) for question in asks]
    with ws.db.read() as connection:
        stored = store.stored_answers(connection, responder.identity, kind, set(keys))
    replies = {key: _from_json(kind, value) for key, value in stored.items()}
    missing = {
        key: question for key, question in zip(keys, asks, strict=True) if key not in replies
    }

    chunk_list = list(chunks(missing, responder.batch))

    recipe = responder.recipe()
    with log.progress(f"{what} of {responder.name}", len(missing), "prompts") as advance:

        def do(index: int) -> PartOutcome:
            chunk = [missing[key] for key in chunk_list[index]]
            # The answers of a chunk arrive together, and a chatty model takes minutes for them.
            advance(0, f"asking {len(chunk)} at once")
            new_replies = reply_to(responder, chunk)
            replies.update(zip(chunk_list[index], new_replies, strict=True))
            return outcome_of(responder, agent_id, chunk, new_replies)

        def advance_by_chunk(index: int) -> None:
            advance(len(chunk_list[index]))

        if recipe is None:
            for index in range(len(chunk_list)):
                outcome = do(index)
                ws.db.write(outcome.effect, outcome.lock)
                advance_by_chunk(index)
        else:
            common = {"agent_id": agent_id, "kind": kind, "recipe": recipe}

            def spec_of(index: int) -> dict[str, Any]:
                return {**common, "asks": [asdict(missing[key]) for key in chunk_list[index]]}

            share(ws, ANSWERS, len(chunk_list), spec_of, do, advance_by_chunk)
    elsewhere = {key for key in missing if key not in replies}
    if elsewhere:
        with ws.db.read() as connection:
            stored = store.stored_answers(connection, responder.identity, kind, elsewhere)
        for key in elsewhere:
            replies[key] = _from_json(kind, stored[key]) if key in stored else ()
    return [replies[key] for key in keys]


def kind_of(asks: Sequence[Ask | AskLikelihood]) -> str:
    """Return the kind under which the replies to these questions are stored."""
    return LIKELIHOODS if asks and isinstance(asks[0], AskLikelihood) else ANSWERS


def key_of(question: Ask | AskLikelihood) -> str:
    """Return the key under which the reply to a question is stored."""
    return ids.fingerprint([kind_of([question]), asdict(question)])


def reply_to(responder: Responder, asks: Sequence[Any]) -> list[Any]:
    """Return the replies to questions of one kind."""
    is_answers = kind_of(asks) == ANSWERS
    return responder.answers(asks) if is_answers else responder.log_probabilities(asks)


def outcome_of(
    responder: Responder, agent_id: str, asks: Sequence[Any], replies: Sequence[Any]
) -> PartOutcome:
    """Return the outcome of a chunk of questions, whose effect stores the replies."""
    kind = kind_of(asks)
    values = {}
    for question, reply in zip(asks, replies, strict=True):
        if reply or kind != ANSWERS:  # what got no answer is asked again next time
            values[key_of(question)] = _to_json(reply)
    effect = partial(
        store.store_answers,
        agent_id=agent_id,
        model=responder.identity,
        kind=kind,
        values=values,
    )
    return PartOutcome(None, effect, of_agent(agent_id))


def chunks(missing: Mapping[str, Ask | AskLikelihood], size: int) -> Iterator[list[str]]:
    """Yield keys of questions of similar length, because prompts in a batch are padded to the
    longest. A chunk asks for about `size` answers."""
    ordered = sorted(missing, key=lambda key: (_length(missing[key]), key))
    chunk: list[str] = []
    room = size
    for key in ordered:
        question = missing[key]
        samples = question.samples if isinstance(question, Ask) else 1
        if chunk:
            longest = LENGTH_RATIO * (_length(missing[chunk[0]]) + SHORT)
            if samples > room or _length(question) > longest:
                yield chunk
                chunk, room = [], size
        chunk.append(key)
        room -= samples
    if chunk:
        yield chunk


def _length(question: Ask | AskLikelihood) -> int:
    characters = sum(len(str(message.get("content") or "")) for message in question.prompt)
    if isinstance(question, AskLikelihood):
        characters += sum(len(text) for text in question.texts)
    return characters


def _to_json(reply: Sequence[Any]) -> list[Any]:
    return [asdict(part) if isinstance(part, ModelAnswer) else part for part in reply]


def _from_json(kind: str, value: list[Any]) -> tuple[Any, ...]:
    if kind == "log_probabilities":
        return tuple((float(total), int(tokens)) for total, tokens in value)
    answers = []
    for fields in value:
        token_ids = None if fields["ids"] is None else tuple(fields["ids"])
        answers.append(ModelAnswer(**fields | {"ids": token_ids}))
    return tuple(answers)
