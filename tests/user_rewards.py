"""Reward functions as users write them, the bad ones too; named in tests as user_rewards:NAME."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from contextlib import suppress
from typing import Any


def length(prompt: Any, answer: str, reference: Any, **row: Any) -> float:
    return len(answer) / 10


def seen(prompt: Any, answer: str, reference: Any, **row: Any) -> float:
    assert prompt == [{"role": "user", "content": "q"}]
    assert reference == "7"
    assert sorted(row) == ["checker", "checker_config", "finish", "row_id"]
    return float(row["finish"] == "stop")


def right(prompt: Any, answer: str, reference: Any, **row: Any) -> bool:
    return answer == reference


def sometimes(prompt: Any, answer: str, reference: Any, **row: Any) -> float | None:
    return 1.0 if answer.startswith("A") else None


def prints(prompt: Any, answer: str, reference: Any, **row: Any) -> float:
    print('{"value": 9}\n' * 5000)
    os.write(1, b'{"value": 9}\n' * 5000)
    os.write(2, b"noise")
    assert sys.stdin.read() == ""
    return 0.25


def flood() -> None:
    for number in range(3, 10):
        with suppress(OSError):
            os.write(number, b"x" * 100_000)


def hostile(prompt: Any, answer: str, reference: Any, **row: Any) -> Any:
    """Does what the answer says."""
    deeds = {
        "loop": lambda: time.sleep(1e6),
        "spin": lambda: [None for _ in iter(int, 1)],
        "exit": lambda: sys.exit(3),
        "os exit": lambda: os._exit(3),
        "segfault": lambda: ctypes.string_at(0),
        "memory": lambda: len(bytearray(5 << 30)),
        "raise": lambda: 1 / 0,
        "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
        "recursion": lambda: hostile(prompt, answer, reference),
        "nan": lambda: math.nan,
        "inf": lambda: -math.inf,
        "text": lambda: "1.0",
        "list": lambda: [1.0],
        "complex": lambda: 1j,
        "close": lambda: os.closerange(3, 64),
        "flood": flood,
        "fine": lambda: 0.5,
    }
    return deeds[answer]()
