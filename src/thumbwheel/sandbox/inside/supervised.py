"""Runs a program or a script that nobody asks anything, in a process of its own, and says how it
ended.

That process has neither the conversation with the host nor the number of the run: both stay with
the process that watches it. It has one end of a line to the watcher. Behind the last line of the
program, and nowhere else, it says there that the end was reached, and is given a word that it has
to repeat. A word said too early, a second one or anything else is no end. What happens within one
process can hide nothing from the program in it, so a program that was written against this very
file could play that part; it would gain what an empty program has. That is why the value of an
answer without tests says only that its code ran.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import select
import signal
import socket
from typing import Any

from . import execution

SCRIPT = "block.sh"
LINE = 9
"""The descriptor of a script's line to the watcher."""
SCRIPT_END = (
    "\nbuiltin printf 'end %s\\n' \"$?\" >&9; "
    "IFS= builtin read -r -u 9 REPLY; "
    "builtin printf '%s\\n' \"$REPLY\" >&9\n"
)
"""One line, as bash reads a script line by line, and the script could write to its own file."""
MAX_LINE = 1 << 16
"""Bytes that are read of a line."""
POLL = 0.01
PR_SET_DUMPABLE = 4


def run(conversation: socket.socket, kind: str, code: str) -> dict[str, Any]:
    """Run the program and return {"done": True}, the error that it raised, {"ended": exit code} if
    its end was not reached, or {"lied": True}."""
    local, remote = socket.socketpair()
    child = os.fork()
    if child == 0:
        _run_child(conversation, local, remote.detach(), kind, code)
    remote.close()
    _shield()
    result = Watch(local, child).result()
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    if kind == "shell":
        return _of_script(result)
    return result


def _run_child(
    conversation: socket.socket, watchers: socket.socket, line: int, kind: str, code: str
) -> None:
    """Run the program in the forked process; never returns."""
    try:
        conversation.close()
        watchers.close()
        if kind == "shell":
            _script(code, line)
        _program(code, line)
    finally:
        os._exit(70)


def _shield() -> None:
    """Ignore SIGINT and make the watcher undumpable, so that the program cannot look into it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _script(code: str, line: int) -> None:
    """Become bash. Its last line is reached when everything before came to its end; it tells the
    status of the last command."""
    with open(SCRIPT, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(code + SCRIPT_END)
    os.dup2(line, LINE)
    os.closerange(3, LINE)
    os.closerange(LINE + 1, 256)
    os.execvp("bash", ["bash", "--noprofile", "--norc", SCRIPT])


def _program(code: str, line: int) -> None:
    """Run a Python program and report its end to the watcher, by functions that were bound before
    it ran.

    Only its last line reports the end: a function that the program replaces here changes only the
    report of an exception.
    """
    write, read, leave, process = os.write, os.read, os._exit, os.getpid
    raised, flush = execution.describe_error, execution.flush
    pid, space = process(), execution.new_main_namespace()
    try:
        exec(compile(code, "<answer>", "exec", dont_inherit=True), space)
    except BaseException as error:  # noqa: BLE001 - a program may end in any way
        result = raised(error)
        flush()
        text = result["text"].encode(errors="replace").hex()
        if process() == pid:
            write(
                line, f"raised {result['raised']} {int(bool(result.get('exit')))} {text}\n".encode()
            )
    else:
        flush()
        if process() == pid:  # a child that it left behind may come to this line too
            write(line, b"end 0\n")
            write(line, read(line, 200))
    leave(0)


class Watch:
    """The watcher's end of the line, and the process at the other."""

    def __init__(self, line: socket.socket, child: int) -> None:
        self._line, self._child = line, child
        self._received = b""
        self._word = b""
        self._status = ""
        self._open = True

    def result(self) -> dict[str, Any]:
        """Return how the program ended. Messages sent before its end count, so the line is read
        once more after that."""
        exit_code: int | None = None
        while True:
            result = self._poll()
            if result is not None:
                return result
            if exit_code is not None:
                return {"ended": exit_code}
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if pid:
                exit_code = os.waitstatus_to_exitcode(status)

    def _poll(self) -> dict[str, Any] | None:
        """Read the messages of a moment; return None if they decide nothing."""
        ready, _, _ = select.select([self._line] if self._open else [], [], [], POLL)
        if not ready:
            return None
        try:
            data = self._line.recv(4096)
        except OSError:
            data = b""
        self._open = bool(data)
        self._received += data
        while b"\n" in self._received:
            message, _, self._received = self._received.partition(b"\n")
            result = self._read_message(message)
            if result is not None:
                return result
        return {"lied": True} if len(self._received) > MAX_LINE else None

    def _read_message(self, message: bytes) -> dict[str, Any] | None:
        words = message.decode("ascii", errors="replace").split(" ")
        if self._word:
            if message != self._word:
                return {"lied": True}
            return {"done": True, "status": self._status}
        if words[0] == "end" and len(words) == 2 and not self._received:
            self._word = secrets.token_hex(16).encode()
            self._status = words[1]
            with contextlib.suppress(OSError):
                self._line.sendall(self._word + b"\n")
            return None
        if words[0] == "raised" and len(words) == 4:
            with contextlib.suppress(ValueError):
                text = bytes.fromhex(words[3]).decode(errors="replace")
                return {"raised": words[1], "text": text, "exit": words[2] == "1"}
        return {"lied": True}


def _of_script(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a script. It succeeded if its last line was reached and the command
    before that had the status 0."""
    if "done" not in result:
        reason = (
            f"bash ended with {result['ended']}"
            if "ended" in result
            else "something else was said in its place"
        )
        return {"raised": "EOFError", "text": f"its end was not reached ({reason})", "exit": True}
    if result["status"] != "0":
        return {
            "raised": "OSError",
            "text": f"its last command had the status {result['status'][:20]}",
        }
    return {"done": True}
