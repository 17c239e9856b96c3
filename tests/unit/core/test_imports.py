"""A signal that arrives during an import is known to do so."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path
from types import FrameType

import pytest

from thumbwheel.core.imports import is_importing


def test_the_frames_of_an_import_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def look(number: int, frame: FrameType | None) -> None:
        seen.append(is_importing(frame))

    source = "import signal\nsignal.raise_signal(signal.SIGUSR1)\n"
    (tmp_path / "signals_itself.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    previous = signal.signal(signal.SIGUSR1, look)
    try:
        signal.raise_signal(signal.SIGUSR1)
        importlib.import_module("signals_itself")
        del sys.modules["signals_itself"]
        exec("import signals_itself")
    finally:
        signal.signal(signal.SIGUSR1, previous)
        sys.modules.pop("signals_itself", None)
    assert seen == [False, True, True]
    assert not is_importing(None)
