"""Examines the machine, the installation and the home, one thing after the other, and says how to
mend what is wrong. It changes nothing: a database of older code is named, not upgraded.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx2

from thumbwheel.app.open import Opener
from thumbwheel.capture.inbox import REJECTED
from thumbwheel.core.config import Home
from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.core.hardware import disk_free_gb, machine
from thumbwheel.db.dialects import SQLITE, Backend, backend_of
from thumbwheel.db.migrate import HEAD, revision_of
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.routing import deployments
from thumbwheel.deploy.running import health, is_stopped
from thumbwheel.deploy.types import DeploymentState
from thumbwheel.llm import tools
from thumbwheel.models.versions import agents
from thumbwheel.sandbox import canaries
from thumbwheel.sdk.spool_files import oldest_age, waiting_bytes
from thumbwheel.sdk.version import __version__

LEAST_DISK_GB = 5.0
"""A training and an export of a small model fit."""
TRAINING = ("torch", "transformers", "peft")
CLOCK_SECONDS = 60.0
"""A line that is further in the future tells of a clock that is wrong."""
OLLAMA = "http://127.0.0.1:11434/api/version"
FAULT = "This is a fault of Thumbwheel; please report it"


class State(StrEnum):
    """State of what was examined."""

    GOOD = "good"
    NOTE = "note"
    """It is not needed for everything."""
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """Result of an examination; `fix` is empty where nothing is to be done."""

    name: str
    state: State
    text: str
    fix: str = ""


def examine(opener: Opener) -> Iterator[Finding]:
    """Yield a finding for each check; an error raised by a check is a finding, too."""
    checks: dict[str, Callable[[], Finding]] = {
        "installation": _installation,
        "training": _training,
        "machine": _machine,
        "home": lambda: _home(opener.folder),
        "disk": lambda: _disk(opener.folder),
        "settings": lambda: _settings(opener),
        "database": lambda: _database(opener),
        "inbox": lambda: _inbox(opener.folder),
        "deployments": lambda: _deployments(opener),
        "sandbox": _sandbox,
        "llama.cpp": _llama_cpp,
        "ollama": _ollama,
    }
    for name, check in checks.items():
        try:
            yield check()
        except ThumbwheelError as error:
            yield Finding(name, State.WRONG, f"{error.what}: {error.why}", error.fix)
        except Exception as error:  # noqa: BLE001 - one examination that fails hides no other
            yield Finding(name, State.WRONG, repr(error), FAULT)


def _installation() -> Finding:
    text = f"thumbwheel {__version__}, Python {platform.python_version()}, {platform.platform()}"
    return Finding("installation", State.GOOD, text)


def _training() -> Finding:
    versions, missing = [], []
    for package in TRAINING:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        text = f"{', '.join(missing)} missing: this installation records, imports and plans only"
        return Finding("training", State.NOTE, text, "Run: pip install 'thumbwheel[train]'")
    return Finding("training", State.GOOD, ", ".join(versions))


def _machine() -> Finding:
    here = machine()
    memory = "memory unknown" if here.ram_gb is None else f"{here.ram_gb:.0f} GB of memory"
    gpus = ", ".join(f"{gpu.name} with {gpu.memory_gb:.0f} GB" for gpu in here.gpus or ())
    return Finding("machine", State.GOOD, f"{here.threads} threads, {memory}, {gpus or 'no GPU'}")


def _home(folder: Path) -> Finding:
    if not folder.exists():
        fix = "The first command that stores makes it"
        return Finding("home", State.NOTE, f"{folder} is not there yet", fix)
    mode = folder.stat().st_mode & 0o777
    if mode & 0o077:
        text = f"{folder} can be read by others (mode {mode:o})"
        return Finding("home", State.WRONG, text, f"Run: chmod 700 {folder}")
    return Finding("home", State.GOOD, str(folder))


def _disk(folder: Path) -> Finding:
    free = disk_free_gb(folder)
    text = f"{free:.1f} GB free at {folder}"
    if free < LEAST_DISK_GB:
        fix = "Free space, or name another folder by --home; thumbwheel db retain shows what is old"
        return Finding("disk", State.WRONG, text, fix)
    return Finding("disk", State.GOOD, text)


def _settings(opener: Opener) -> Finding:
    sources = opener.settings()
    text = f"{sources.path}: {', '.join(sources.file)}" if sources.file else "all by default"
    return Finding("settings", State.GOOD, text)


def _backend(opener: Opener) -> Backend:
    """Return the backend of the home's rows."""
    return backend_of(Home.at(opener.home), opener.settings().environment)


def _database(opener: Opener) -> Finding:
    backend = _backend(opener)
    where = "SQLite, in the home" if backend.address == SQLITE else backend.address
    if not backend.exists:
        return Finding("database", State.NOTE, f"{where}: the first command that stores makes it")
    revision = revision_of(backend)
    if revision != HEAD:
        text = f"{where}: revision {revision}, this program writes {HEAD}"
        fix = "Run thumbwheel backup with the program that wrote it; the next command upgrades it"
        return Finding("database", State.NOTE, text, fix)
    return Finding("database", State.GOOD, f"{where}: revision {revision}")


def _inbox(folder: Path) -> Finding:
    inbox = Home.at(folder).inbox
    rejected = inbox / REJECTED
    if rejected.exists() and rejected.stat().st_size:
        fix = f"Look at {rejected}: each line says why; delete it when it is dealt with"
        return Finding("inbox", State.WRONG, "lines that cannot be stored are set aside", fix)
    waiting, age = waiting_bytes(inbox), oldest_age(inbox)
    if age < -CLOCK_SECONDS:
        text = f"a line comes from {-age:.0f} s in the future"
        return Finding("inbox", State.WRONG, text, "Set the clock of this machine, or of the app's")
    text = f"{waiting} bytes wait, the oldest line for {max(age, 0):.0f} s" if waiting else "empty"
    return Finding("inbox", State.GOOD, text)


def _deployments(opener: Opener) -> Finding:
    backend = _backend(opener)
    if not backend.exists or revision_of(backend) != HEAD:
        return Finding("deployments", State.NOTE, "not looked at: see the database")
    silent, answering = [], 0
    with Workspace.open(Home.at(opener.home), opener.settings()) as ws:
        for agent in agents(ws):
            for deployment in deployments(ws, agent):
                if deployment.state is not DeploymentState.WARM or is_stopped(ws, deployment):
                    continue
                state = health(deployment)
                answering += state.alive
                if not state.alive:
                    silent.append(f"{agent.slug} on {deployment.target}: {state.why}")
    if silent:
        fix = "Run thumbwheel serve, which starts them, or: thumbwheel deploy VERSION --agent AGENT"
        return Finding("deployments", State.WRONG, "; ".join(silent), fix)
    return Finding("deployments", State.GOOD, f"{answering} answer" if answering else "none")


def _sandbox() -> Finding:
    report = canaries.examine()
    if not report.allowed:
        text = f"{report.reason or 'no level is reached'}: answers that are programs are not run"
        return Finding("sandbox", State.NOTE, text, report.fix or "")
    return Finding("sandbox", State.GOOD, f"level {report.level}")


def _llama_cpp() -> Finding:
    missing = [name for name in tools.FOR if tools.find(name) is None]
    if missing:
        text = f"{', '.join(missing)} missing, for GGUF"
        return Finding("llama.cpp", State.NOTE, text, "Run: thumbwheel tools install")
    return Finding("llama.cpp", State.GOOD, "all programs are there")


def _ollama() -> Finding:
    try:
        answer = httpx2.get(OLLAMA, timeout=2, trust_env=False)
        running = answer.json()["version"]
    except (httpx2.HTTPError, ValueError, KeyError):
        text = "none answers on this machine; it is needed for the target ollama alone"
        return Finding("ollama", State.NOTE, text)
    return Finding("ollama", State.GOOD, f"version {running}")
