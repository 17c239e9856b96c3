"""What pages know of the commands behind their forms: which settings a request may give, and the
state that a change is compared with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from thumbwheel.app.served_home import Asking, ServedHome
from thumbwheel.core.config import Config
from thumbwheel.loop.decision_card import CheckFinding
from thumbwheel.server.api.endpoint import Operation, etag
from thumbwheel.server.api.invocation import run_at_once
from thumbwheel.server.api.routers import operations
from thumbwheel.server.pages.forms import FormField, form_fields
from thumbwheel.server.pages.page import PageRequest

CHECK_TONES = {
    CheckFinding.HOLDS: "good",
    CheckFinding.WORSE: "bad",
    CheckFinding.OPEN: "wait",
    CheckFinding.UNMEASURED: "",
    CheckFinding.NOTHING_TO_LOSE: "",
}
"""What is known of a check -> the tone of its badge. Only what was measured and holds is green."""


@cache
def _operations() -> Mapping[str, Operation]:
    return operations()


def offered_fields(
    command: str,
    cls: type[Config],
    values: Mapping[str, Any] | Config | None = None,
    leading: Collection[str] = (),
) -> tuple[list[FormField], list[FormField]]:
    """Return the fields of a config class that a request for this command may set: those in
    `leading`, in that order, and the others. Fields that name a path on the server's machine are in
    neither."""
    offered = {parameter.name for parameter in _operations()[command].parameters}
    by_name = {field.name: field for field in form_fields(cls, values) if field.name in offered}
    first = [by_name[name] for name in leading if name in by_name]
    others = [field for name, field in by_name.items() if name not in leading]
    return first, others


def state_tag(asked: PageRequest, command: str) -> str:
    """Return the ETag of this command's answer for the agent: a change that is sent with it is
    refused if somebody else changed the state first."""
    home = ServedHome(asked.ws, asked.ws, Asking())
    signature = _operations()[command].signature
    return etag(run_at_once(home, signature, {"agent": asked.agent.slug}))
