"""What a child does: run a program and answer questions about it, have one run that nobody asks
anything (supervised.py), or judge.

The answers of a candidate are data and nothing else: whatever its code does to this process, it can
only choose which data to send, and what would be right is not in its sandbox. Every question has a
number that cannot be guessed before it is asked.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import Any

from . import execution, judge, supervised
from .execution import describe_error, flush
from .protocol import ANNOTATIONS_FLAG, Channel, decode, encode


def serve(connection: socket.socket) -> None:
    """Read one job and do it; never returns."""
    channel = Channel(connection)
    job = channel.receive()
    if job["kind"] == "judge":
        channel.send(judge.verdict(channel, job))
    elif job.get("questions"):
        candidate(channel, job)
    else:
        channel.send(supervised.run(connection, job["kind"], job["code"]))
    flush()
    os._exit(0)


def candidate(channel: Channel, job: dict[str, Any]) -> None:
    """Run the program, say how that went, then answer questions until there are none."""
    program = Program()
    result = execution.run_program(job["code"], program.space)
    channel.send({"id": job["id"]} | result)
    while "done" in result:
        try:
            question = channel.receive()
        except EOFError:
            return
        answer = program.reply(question)
        try:
            channel.send({"id": question["id"]} | answer)
        except ValueError as error:
            channel.send(
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
        self.space, self._objects = execution.new_main_namespace(), list[Any]()

    def reply(self, question: dict[str, Any]) -> dict[str, Any]:
        """Reply to a question: return the encoded value, or the exception that was raised."""
        try:
            value = self._value(question)
            flush()
            return {"value": encode(value, self._describe)}
        except BaseException as error:  # noqa: BLE001 - a candidate may raise anything
            try:
                return describe_error(error) | {
                    "arguments": encode(list(error.args), self._describe)
                }
            except BaseException:  # noqa: BLE001 - and say anything about it
                return describe_error(error)

    def _value(self, question: dict[str, Any]) -> Any:
        """Return the value of an expression (`ask`), of an `attribute` of an object, of its next
        items (`take`), or of a call; run a `setup` and return None."""
        if "ask" in question:
            return eval(
                compile(question["ask"], "<question>", "eval", dont_inherit=True), self.space
            )
        if "setup" in question:
            # a program comes after the setup, and may define its functions anew
            functions = {name: value for name, value in self.space.items() if callable(value)}
            for name, encoded in question["values"].items():
                self.space[name] = decode(encoded, self._object)
            setup = question["setup"]
            code = compile(setup, "<setup>", "exec", ANNOTATIONS_FLAG, dont_inherit=True)
            exec(code, self.space)
            self.space |= functions
            return None
        target = (
            self._objects[question["object"]]
            if "object" in question
            else self.space[question["call"]]
        )
        if "attribute" in question:
            return getattr(target, question["attribute"])
        if "take" in question:
            return list(itertools.islice(target, question["take"]))
        arguments, named = (
            decode(question["arguments"], self._object),
            decode(question["named"], self._object),
        )
        result = target(*arguments, **named)
        return arguments if question.get("back") else result

    def _describe(self, value: Any) -> tuple[str, int]:
        self._objects.append(value)
        return f"{type(value).__module__}.{type(value).__qualname__}"[:200], len(self._objects) - 1

    def _object(self, name: str, number: int) -> Any:
        return self._objects[number]
