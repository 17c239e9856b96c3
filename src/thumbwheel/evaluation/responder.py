"""The contract of a side: something that answers prompts, whatever serves it, and where it can says
how likely it finds a text.

Sides are: a base with an adapter in this process (`local_model.py`), a server (`served.py`: a GGUF file
through llama-server, or an endpoint), and what was recorded (`recorded.py`). Every question to a
side goes through `ask`, which keeps the replies, so that the same question to the same model is
never paid for twice and a stopped evaluation goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from thumbwheel.core import ids, log
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.types import Answer, Answers, Ask, Known, Sums

ALIKE, SHORT = 2, 200
"""How much longer the longest question of a chunk may be than the shortest, beyond so many
characters."""


class Responder(Protocol):
    """A model, served in one way."""

    @property
    def name(self) -> str:
        """What people call it: v3, v3 as gguf:model.gguf."""

    @property
    def identity(self) -> str:
        """Fingerprint of all that its replies depend on besides the question."""

    @property
    def batch(self) -> int:
        """Prompts that it is best asked together."""

    @property
    def scores(self) -> bool:
        """Whether it knows log-probabilities of given texts."""

    def answers(self, asks: Sequence[Ask]) -> list[Answers]:
        """Fresh answers, in the order of the questions."""

    def log_probabilities(self, asks: Sequence[Known]) -> list[Sums]:
        """Of given texts; only asked of a side that `scores`."""

    def close(self) -> None:
        """Let go of processes and connections."""


def ask(
    ws: Workspace, agent_id: str, side: Responder, asks: Sequence[Ask | Known], what: str
) -> list[Any]:
    """The replies of `side`, in the order of `asks` (all of one kind): kept ones, and new ones,
    which are kept chunk by chunk.

    What is missing is asked in an order that depends on the questions alone, so that an evaluation
    which was stopped asks the rest in the very batches that it would have asked it in.
    """
    keys = [ids.fingerprint([type(one).__name__, asdict(one)]) for one in asks]
    kind = "log_probabilities" if asks and isinstance(asks[0], Known) else "answers"
    with ws.db.read() as connection:
        kept = {
            key: _read(kind, value)
            for key, value in store.kept_answers(connection, side.identity, kind, set(keys)).items()
        }
    missing = {key: one for key, one in zip(keys, asks, strict=True) if key not in kept}
    reply: Callable[[Any], list[Any]] = (
        side.log_probabilities if kind == "log_probabilities" else side.answers
    )
    with log.progress(f"{what} of {side.name}", len(missing), "prompts") as advance:
        for chunk in chunks(missing, side.batch):
            found = dict(zip(chunk, reply([missing[key] for key in chunk]), strict=True))
            told = {
                key: replies for key, replies in found.items() if replies or kind != "answers"
            }  # what got no answer is asked again
            values = {
                key: [asdict(one) if isinstance(one, Answer) else one for one in replies]
                for key, replies in told.items()
            }
            ws.db.write(
                partial(
                    store.keep_answers,
                    agent_id=agent_id,
                    model=side.identity,
                    kind=kind,
                    values=values,
                )
            )
            kept |= found
            advance(len(chunk))
    return [kept[key] for key in keys]


def chunks(missing: Mapping[str, Ask | Known], size: int) -> Iterator[list[str]]:
    """Keys of questions of like length, of about as many answers as `size`: prompts in a batch are
    padded to the longest."""
    ordered = sorted(missing, key=lambda key: (_length(missing[key]), key))
    chunk: list[str] = []
    room = size
    for key in ordered:
        one = missing[key]
        weight = one.samples if isinstance(one, Ask) else 1
        if chunk and (weight > room or _length(one) > ALIKE * (_length(missing[chunk[0]]) + SHORT)):
            yield chunk
            chunk, room = [], size
        chunk.append(key)
        room -= weight
    if chunk:
        yield chunk


def _length(one: Ask | Known) -> int:
    texts = [str(message.get("content") or "") for message in one.prompt] + (
        list(one.texts) if isinstance(one, Known) else []
    )
    return sum(map(len, texts))


def _read(kind: str, value: list[Any]) -> tuple[Any, ...]:
    if kind == "log_probabilities":
        return tuple((float(total), int(count)) for total, count in value)
    return tuple(
        Answer(**one | {"ids": None if one["ids"] is None else tuple(one["ids"])}) for one in value
    )
