"""The section `template` of the settings: how the chat template of an agent's models is used.

Training writes these settings into the chat template that it saves with the adapter, so evaluation,
exports and servers render as training did (engine/adapted_template.py).
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from thumbwheel.core.config import Config

if TYPE_CHECKING:
    from thumbwheel.db.workspace import Workspace

RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables of every chat template that the conversation decides."""


class TemplateSettings(Config):
    """How a chat template is used."""

    system: Literal["merge", "refuse", "template"] = "merge"
    """Where the template takes no system message or leaves it out: merge puts its text before the
    next user message, refuse leaves the row out and refuses the request, template uses the template
    as it is."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the template by name, such as enable_thinking: false."""
    day: date | None = None
    """The day that a template with a date shows; unset, the day of the dataset that is trained
    on."""

    @field_validator("options")
    @classmethod
    def _are_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name, value in options.items():
            if not name.isidentifier() or name in RESERVED:
                raise ValueError(f"{name!r} is no option of a chat template")
            if not _is_plain(value):
                raise ValueError(f"{name!r} is {value!r:.80}, not a value that JSON has")
        return options


class TemplateConfig(TemplateSettings):
    """The section `template`: for all agents, and in `agents` the exceptions of each."""

    agents: dict[str, TemplateSettings] = Field(default_factory=dict)
    """agent -> its own settings. Its options are added to those above."""

    def of(self, agent: str) -> TemplateSettings:
        """Return the settings of `agent`."""
        of_agent = self.agents.get(agent, TemplateSettings())
        values = {name: getattr(self, name) for name in TemplateSettings.model_fields}
        values |= {name: getattr(of_agent, name) for name in of_agent.model_fields_set}
        values["options"] = {**self.options, **of_agent.options}
        return TemplateSettings(**values)


AS_IT_IS = TemplateSettings(system="template")
"""For templates with which a model was already trained."""


def template_settings(ws: Workspace, agent: str) -> TemplateSettings:
    """Return the section `template` for one agent."""
    return ws.settings(TemplateConfig, "template").of(agent)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)
