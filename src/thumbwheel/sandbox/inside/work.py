"""What a child does: run a program and answer questions about it, have one run that nobody asks
anything (watched.py), or judge.

The answers of a candidate are data and nothing else: whatever its code does to this process, it can
only choose which data to send, and what would be right is not in its sandbox. Every question has a
number that cannot be guessed before it is asked.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import Any

from . import ending, judge, watched
from .ending import flush, raised
from .wire import LATE, Talk, decode, encode


def serve(connection: socket.socket) -> None:
    """Read one job and do it; never returns."""
    talk = Talk(connection)
    job = talk.receive()
    if job["kind"] == "judge":
        talk.send(judge.verdict(talk, job))
    elif job.get("questions"):
        candidate(talk, job)
    else:
        talk.send(watched.run(connection, job["kind"], job["code"]))
    flush()
    os._exit(0)


def candidate(talk: Talk, job: dict[str, Any]) -> None:
    """Run the program, say how that went, then answer questions until there are none."""
    program = Program()
    found = ending.ran(job["code"], program.space)
    talk.send({"id": job["id"]} | found)
    while "done" in found:
        try:
            question = talk.receive()
        except EOFError:
            return
        answer = program.reply(question)
        try:
            talk.send({"id": question["id"]} | answer)
        except ValueError as error:
            talk.send(
                {
                    "id": question["id"],
                    "raised": "OverflowError",
                    "text": f"the value is too long: {error}",
                }
            )


class Program:
    """The names of a program that has run, and the objects that it answered with: the judge has
    their numbers."""

    def __init__(self) -> None:
        self.space, self._held = ending.main_space(), list[Any]()

    def reply(self, question: dict[str, Any]) -> dict[str, Any]:
        """The value of what is asked, or what was raised on the way."""
        try:
            value = self._value(question)
            flush()
            return {"value": encode(value, self._describe)}
        except BaseException as error:  # noqa: BLE001 - a candidate may raise anything
            try:
                return raised(error) | {"arguments": encode(list(error.args), self._describe)}
            except BaseException:  # noqa: BLE001 - and say anything about it
                return raised(error)

    def _value(self, question: dict[str, Any]) -> Any:
        """Of an expression (`ask`), of an `attribute` of an object, of its next items (`take`), or
        of a call."""
        if "ask" in question:
            return eval(
                compile(question["ask"], "<question>", "eval", dont_inherit=True), self.space
            )
        if "setup" in question:
            own = {
                name: one for name, one in self.space.items() if callable(one)
            }  # a program comes after the setup, and may define anew
            self.space |= {
                name: decode(given, self._found) for name, given in question["values"].items()
            }
            exec(compile(question["setup"], "<setup>", "exec", LATE, dont_inherit=True), self.space)
            self.space |= own
            return None
        target = (
            self._held[question["object"]] if "object" in question else self.space[question["call"]]
        )
        if "attribute" in question:
            return getattr(target, question["attribute"])
        if "take" in question:
            return list(itertools.islice(target, question["take"]))
        arguments, named = (
            decode(question["arguments"], self._found),
            decode(question["named"], self._found),
        )
        found = target(*arguments, **named)
        return arguments if question.get("back") else found

    def _describe(self, value: Any) -> tuple[str, int]:
        self._held.append(value)
        return f"{type(value).__module__}.{type(value).__qualname__}"[:200], len(self._held) - 1

    def _found(self, name: str, number: int) -> Any:
        return self._held[number]
