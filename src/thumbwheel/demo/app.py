"""The app of the demo: which model files the mail, and with which system prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thumbwheel.demo.base import NAME, BaseConfig, Progress, ensure_base
from thumbwheel.demo.world import FOLDERS, PRIORITIES, SYSTEM, Filing

REAL = "smollm2-135m"
"""The base of `demo --real`, as `models fetch` names it."""
REAL_SYSTEM = (
    f"File this mail as JSON. The folder is one of {', '.join(FOLDERS)}; the priority is "
    f"{', '.join(PRIORITIES[:-1])} or {PRIORITIES[-1]}. Form of the answer: "
    f"{Filing('work', 'low').text()}"
)
"""A pretrained model has to be told what the tiny base was trained on."""


@dataclass(frozen=True)
class DemoApp:
    """An app that files mail."""

    model: str
    """Its model's name in the recorded calls"""
    base: str
    """What `--base` takes for this model"""
    folder: Path
    """The model's files"""
    system: str
    """The system prompt of every call"""

    def chat(self, message: str) -> list[dict[str, str]]:
        """Return the messages that the model gets with a mail."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": message},
        ]


def tiny_app(
    cache: Path, config: BaseConfig | None = None, progress: Progress | None = None
) -> DemoApp:
    """Return the app on the demo's own base, which is taken from `cache` or trained into it."""
    folder = ensure_base(cache, config, progress)
    return DemoApp(NAME, str(folder), folder, SYSTEM)


def real_app() -> DemoApp:
    """Return the app on a pretrained model, which is downloaded where this user does not have it
    yet."""
    from thumbwheel.models.base import locate
    from thumbwheel.models.fetch import fetch, known_base

    fetch(known_base(REAL))
    return DemoApp(REAL, REAL, locate(REAL)[1], REAL_SYSTEM)
