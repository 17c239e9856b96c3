"""What a child does: run a program and answer questions about it, run a shell script, or judge.

The answers of a candidate are data and nothing else: whatever its code does to this process, it can only choose which data to send, and
what would be right is not in its sandbox. Every question has a number that cannot be guessed before it is asked.
"""

from __future__ import annotations

import builtins
import itertools
import os
import socket
import sys
import traceback
from types import ModuleType
from typing import Any

from . import judge
from .wire import LATE, Talk, decode, encode

LONGEST_TEXT = 2000
SCRIPT = "block.sh"
MARK = 9
"""The descriptor on which the last line of a script says that it was reached."""


def serve(connection: socket.socket) -> None:
    """Read one job and do it; never returns."""
    talk = Talk(connection)
    job = talk.receive()
    if job["kind"] == "judge":
        talk.send(judge.verdict(talk, job))
    elif job["kind"] == "shell":
        talk.send({"id": job["id"]} | shell(job["code"], job["id"]))
    else:
        candidate(talk, job)
    flush()
    os._exit(0)


def candidate(talk: Talk, job: dict[str, Any]) -> None:
    """Run the program, say how that went, then answer questions until there are none."""
    program = Program()
    try:
        exec(compile(job["code"], "<answer>", "exec", dont_inherit=True), program.space)
        found: dict[str, Any] = {"done": True}
    except BaseException as error:  # noqa: BLE001 - a program may end in any way
        found = raised(error)
    flush()
    talk.send({"id": job["id"]} | found)
    while job.get("questions") and "done" in found:
        try:
            question = talk.receive()
        except EOFError:
            return
        answer = program.reply(question)
        try:
            talk.send({"id": question["id"]} | answer)
        except ValueError as error:
            talk.send({"id": question["id"], "raised": "OverflowError", "text": f"the value is too long: {error}"})


class Program:
    """The names of a program that has run, and the objects that it answered with: the judge has their numbers."""

    def __init__(self) -> None:
        module = ModuleType("__main__")
        sys.modules["__main__"] = module
        sys.argv = [""]
        self.space, self._held = vars(module), list[Any]()

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
        """Of an expression (`ask`), of an `attribute` of an object, of its next items (`take`), or of a call."""
        if "ask" in question:
            return eval(compile(question["ask"], "<question>", "eval", dont_inherit=True), self.space)
        if "setup" in question:
            own = {name: one for name, one in self.space.items() if callable(one)}  # a program comes after the setup, and may define anew
            self.space |= {name: decode(given, self._found) for name, given in question["values"].items()}
            exec(compile(question["setup"], "<setup>", "exec", LATE, dont_inherit=True), self.space)
            self.space |= own
            return None
        target = self._held[question["object"]] if "object" in question else self.space[question["call"]]
        if "attribute" in question:
            return getattr(target, question["attribute"])
        if "take" in question:
            return list(itertools.islice(target, question["take"]))
        arguments, named = decode(question["arguments"], self._found), decode(question["named"], self._found)
        found = target(*arguments, **named)
        return arguments if question.get("back") else found

    def _describe(self, value: Any) -> tuple[str, int]:
        self._held.append(value)
        return f"{type(value).__module__}.{type(value).__qualname__}"[:200], len(self._held) - 1

    def _found(self, name: str, number: int) -> Any:
        return self._held[number]


def raised(error: BaseException) -> dict[str, Any]:
    """What was raised, in words; the name is that of the nearest built-in class."""
    try:
        kind = next(one.__name__ for one in type(error).__mro__ if getattr(builtins, one.__name__, None) is one)
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        if isinstance(error, SystemExit):
            return {"raised": kind, "text": f"the program left by exit ({text})"[:LONGEST_TEXT], "exit": True}
        return {"raised": kind, "text": text[:LONGEST_TEXT]}
    except BaseException:  # noqa: BLE001 - an exception whose text raises
        return {"raised": "Exception", "text": "an exception that cannot be described"}


def flush() -> None:
    """Hand on what was printed."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - they may have been replaced or closed
        return


def shell(code: str, mark: str) -> dict[str, Any]:
    """Run a script by bash. It has succeeded when its last line was reached and the command before that had the status 0."""
    with open(SCRIPT, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{code}\nbuiltin printf '%s %s' {mark} \"$?\" >&{MARK}\n")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, MARK)
        os.closerange(3, MARK)
        os.closerange(MARK + 1, 256)
        os.execvp("bash", ["bash", "--noprofile", "--norc", SCRIPT])
    os.close(writing)
    _, status = os.waitpid(child, 0)
    os.set_blocking(reading, False)
    try:
        said = os.read(reading, 200).decode(errors="replace").split()
    except BlockingIOError:
        said = []
    if said[:1] != [mark]:
        return {
            "raised": "EOFError",
            "text": f"its end was not reached (bash ended with {os.waitstatus_to_exitcode(status)})",
            "exit": True,
        }
    return {"done": True} if said[1:] == ["0"] else {"raised": "OSError", "text": f"its last command had the status {said[1:]}"}
