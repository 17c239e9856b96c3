"""Calls as the gateway records them: with its seal, through the inbox."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from thumbwheel.capture.gateway_seal import sealed_line
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core.seal import make_seal
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk.segment import Segment


def record_calls(ws: Workspace, lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Make rows of lines of traces that each have their `agent` and `id`; returns what the inbox
    has to say."""
    segment, seal = Segment(ws.home.inbox), make_seal(ws.home.signing)
    for line in lines:
        segment.append(json.dumps(sealed_line(seal, line), default=str).encode())
    segment.close()
    return drain_inbox(ws)
