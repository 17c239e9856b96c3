"""What a terminal shows of a job that somebody else does: its lines and its progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from thumbwheel.core import log


def show_progress(events: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Show the events of a job, given as (kind, content), until they end."""
    work, advance, done = None, None, 0.0
    with ExitStack() as bar:
        for kind, content in events:
            if kind == "log":
                log.say(content["text"])
            elif kind == "progress":
                if advance is None or work != content["what"]:
                    bar.close()
                    work, done = content["what"], 0.0
                    shown = log.progress(content["what"], content["total"], content["unit"])
                    advance = bar.enter_context(shown)
                advance(max(0.0, content["done"] - done), content["note"], content["total"])
                done = max(done, content["done"])


def event_line(kind: str, content: Mapping[str, Any], recorded_at: datetime) -> str:
    """Return a job's event as a line of its log."""
    if kind == "log":
        text = content["text"]
    elif kind == "state":
        why = f": {content['error']['why']}" if "error" in content else ""
        text = f"[{content['state']}]{why}"
    else:
        total = f" of {content['total']:.0f}" if content["total"] else ""
        note = f"; {content['note']}" if content["note"] else ""
        text = f"{content['what']}: {content['done']:.0f}{total} {content['unit']}{note}"
    return f"{recorded_at:%H:%M:%S} {text}"
