"""Examines the machine, the installation and the home, one thing after the other, and says how to
mend what is wrong. It changes nothing: a database of older code is named, not upgraded.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx2

from thumbwheel.app.open import Opener
from thumbwheel.capture.inbox import REJECTED
from thumbwheel.core.config import Home
from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.core.figures import duration
from thumbwheel.core.hardware import disk_free_gb, machine
from thumbwheel.db.dialects import SQLITE, Backend, backend_of
from thumbwheel.db.engine import Database
from thumbwheel.db.host_software import CLOCK_FIX, CLOCK_SECONDS, clock_difference, clock_text
from thumbwheel.db.migrate import HEAD, revision_of
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import ollama_api
from thumbwheel.deploy.routing import deployments
from thumbwheel.deploy.running import health, is_stopped
from thumbwheel.deploy.targets import vllm
from thumbwheel.deploy.types import DeploymentState
from thumbwheel.llm import tools
from thumbwheel.models.blob_settings import BlobsConfig
from thumbwheel.models.bucket import Bucket, BucketAddress
from thumbwheel.models.versions import agents
from thumbwheel.sandbox import canaries
from thumbwheel.sdk.spool_files import oldest_age, waiting_bytes
from thumbwheel.sdk.version import __version__

LEAST_DISK_GB = 5.0
"""A training and an export of a small model fit."""
TRAINING = ("torch", "transformers", "peft")
FAULT = "This is a fault of Thumbwheel; please report it"


class FindingState(StrEnum):
    """State of what was examined."""

    GOOD = "good"
    NOTE = "note"
    """It is not needed for everything."""
    WRONG = "wrong"


@dataclass(frozen=True)
class DoctorFinding:
    """Result of an examination; `fix` is empty where nothing is to be done."""

    name: str
    state: FindingState
    text: str
    fix: str = ""


def examine(opener: Opener) -> Iterator[DoctorFinding]:
    """Yield a finding for each check; an error raised by a check is a finding, too."""
    checks: dict[str, Callable[[], DoctorFinding]] = {
        "installation": _installation,
        "training": _training,
        "machine": _machine,
        "home": lambda: _home(opener.folder),
        "disk": lambda: _disk(opener.folder),
        "settings": lambda: _settings(opener),
        "database": lambda: _database(opener),
        "blobs": lambda: _blobs(opener),
        "inbox": lambda: _inbox(opener.folder),
        "deployments": lambda: _deployments(opener),
        "sandbox": _sandbox,
        "llama.cpp": _llama_cpp,
        "ollama": _ollama,
        "vllm": lambda: _vllm(opener),
        "clock": lambda: _clock(opener),
    }
    for name, check in checks.items():
        try:
            yield check()
        except ThumbwheelError as error:
            yield DoctorFinding(name, FindingState.WRONG, f"{error.what}: {error.why}", error.fix)
        except Exception as error:  # noqa: BLE001 - one examination that fails hides no other
            yield DoctorFinding(name, FindingState.WRONG, repr(error), FAULT)


def _installation() -> DoctorFinding:
    text = f"thumbwheel {__version__}, Python {platform.python_version()}, {platform.platform()}"
    return DoctorFinding("installation", FindingState.GOOD, text)


def _training() -> DoctorFinding:
    versions, missing = [], []
    for package in TRAINING:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        text = f"{', '.join(missing)} missing: this installation records, imports and plans only"
        return DoctorFinding(
            "training", FindingState.NOTE, text, "Run: pip install 'thumbwheel[train]'"
        )
    return DoctorFinding("training", FindingState.GOOD, ", ".join(versions))


def _machine() -> DoctorFinding:
    here = machine()
    memory = "memory unknown" if here.ram_gb is None else f"{here.ram_gb:.0f} GB of memory"
    gpus = ", ".join(f"{gpu.name} with {gpu.memory_gb:.0f} GB" for gpu in here.gpus or ())
    return DoctorFinding(
        "machine", FindingState.GOOD, f"{here.threads} threads, {memory}, {gpus or 'no GPU'}"
    )


def _home(folder: Path) -> DoctorFinding:
    if not folder.exists():
        fix = "Run: thumbwheel init"
        return DoctorFinding("home", FindingState.NOTE, f"{folder} is not there yet", fix)
    mode = folder.stat().st_mode & 0o777
    if mode & 0o077:
        text = f"{folder} can be read by others (mode {mode:o})"
        return DoctorFinding("home", FindingState.WRONG, text, f"Run: chmod 700 {folder}")
    return DoctorFinding("home", FindingState.GOOD, str(folder))


def _disk(folder: Path) -> DoctorFinding:
    free = disk_free_gb(folder)
    text = f"{free:.1f} GB free at {folder}"
    if free < LEAST_DISK_GB:
        fix = "Free space, or name another folder by --home; thumbwheel db retain shows what is old"
        return DoctorFinding("disk", FindingState.WRONG, text, fix)
    return DoctorFinding("disk", FindingState.GOOD, text)


def _settings(opener: Opener) -> DoctorFinding:
    sources = opener.settings()
    text = f"{sources.path}: {', '.join(sources.file)}" if sources.file else "all by default"
    return DoctorFinding("settings", FindingState.GOOD, text)


def _backend(opener: Opener) -> Backend:
    """Return the backend of the home's rows."""
    return backend_of(Home.at(opener.home), opener.settings().environment)


def _database(opener: Opener) -> DoctorFinding:
    backend = _backend(opener)
    where = "SQLite, in the home" if backend.address == SQLITE else backend.address
    if not backend.exists:
        return DoctorFinding(
            "database", FindingState.NOTE, f"{where}: not there yet", "Run: thumbwheel init"
        )
    revision = revision_of(backend)
    if revision != HEAD:
        text = f"{where}: revision {revision}, this program writes {HEAD}"
        fix = "Run thumbwheel backup with the program that wrote it; the next command upgrades it"
        return DoctorFinding("database", FindingState.NOTE, text, fix)
    return DoctorFinding("database", FindingState.GOOD, f"{where}: revision {revision}")


def _blobs(opener: Opener) -> DoctorFinding:
    settings = opener.settings().load(BlobsConfig, "blobs")
    if settings.location is None:
        return DoctorFinding("blobs", FindingState.GOOD, "in the folder of the home")
    bucket = Bucket(BucketAddress.parse(settings.location), settings.timeout_seconds)
    bucket.require_fit()
    text = f"{bucket.name}: creates, reads and deletes objects"
    return DoctorFinding("blobs", FindingState.GOOD, text)


def _inbox(folder: Path) -> DoctorFinding:
    inbox = Home.at(folder).inbox
    rejected = inbox / REJECTED
    if rejected.exists() and rejected.stat().st_size:
        fix = f"Look at {rejected}: each line says why; delete it when it is dealt with"
        return DoctorFinding(
            "inbox", FindingState.WRONG, "lines that cannot be stored are set aside", fix
        )
    waiting, age = waiting_bytes(inbox), oldest_age(inbox)
    if age < -CLOCK_SECONDS:
        text = f"a line comes from {-age:.0f} s in the future"
        return DoctorFinding(
            "inbox", FindingState.WRONG, text, "Set the clock of this machine, or of the app's"
        )
    text = f"{waiting} bytes wait, the oldest line for {max(age, 0):.0f} s" if waiting else "empty"
    return DoctorFinding("inbox", FindingState.GOOD, text)


def _deployments(opener: Opener) -> DoctorFinding:
    backend = _backend(opener)
    if not backend.exists or revision_of(backend) != HEAD:
        text = "not looked at: see the database"
        return DoctorFinding("deployments", FindingState.NOTE, text, "Mend the database first")
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
        return DoctorFinding("deployments", FindingState.WRONG, "; ".join(silent), fix)
    return DoctorFinding(
        "deployments", FindingState.GOOD, f"{answering} answer" if answering else "none"
    )


def _sandbox() -> DoctorFinding:
    report = canaries.examine()
    if not report.allowed:
        text = f"{report.reason or 'no level is reached'}: answers that are programs are not run"
        return DoctorFinding("sandbox", FindingState.NOTE, text, report.fix or "")
    return DoctorFinding("sandbox", FindingState.GOOD, f"level {report.level}")


def _llama_cpp() -> DoctorFinding:
    missing = [name for name in tools.FOR if tools.find(name) is None]
    if missing:
        text = f"{', '.join(missing)} missing, for GGUF"
        return DoctorFinding("llama.cpp", FindingState.NOTE, text, "Run: thumbwheel tools install")
    return DoctorFinding("llama.cpp", FindingState.GOOD, "all programs are there")


def _ollama() -> DoctorFinding:
    url = ollama_api.address(None)
    try:
        answer = httpx2.get(f"{url}/api/version", timeout=2, trust_env=False)
        running = answer.json()["version"]
    except (httpx2.HTTPError, ValueError, KeyError):
        text = f"none answers at {url}; it is needed for the target ollama alone"
        fix = "Start it (ollama serve), or say where it runs: OLLAMA_HOST"
        return DoctorFinding("ollama", FindingState.NOTE, text, fix)
    return DoctorFinding("ollama", FindingState.GOOD, f"version {running} at {url}")


def _vllm(opener: Opener) -> DoctorFinding:
    settings = opener.settings().load(vllm.VllmConfig, "deploy.vllm")
    headers = {}
    if key := os.environ.get(settings.key_variable):
        headers["authorization"] = f"Bearer {key}"
    try:
        answer = httpx2.get(
            f"{settings.url.rstrip('/')}/v1/models", headers=headers, timeout=2, trust_env=False
        )
        models = [model["id"] for model in answer.raise_for_status().json()["data"]]
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        text = f"none answers at {settings.url}; it is needed for the target vllm alone"
        return DoctorFinding("vllm", FindingState.NOTE, text, f"Start it: {vllm.START}")
    return DoctorFinding("vllm", FindingState.GOOD, f"{settings.url} serves {', '.join(models)}")


def _clock(opener: Opener) -> DoctorFinding:
    """Compare the clock with the files of the home and with the database, which other hosts may
    share, and ask systemd whether the time is synced."""
    ahead = _seconds_ahead(opener.folder)
    if ahead > CLOCK_SECONDS:
        text = f"files of the home are from {duration(ahead)} in the future"
        return DoctorFinding("clock", FindingState.WRONG, text, CLOCK_FIX)
    difference = _difference_from_database(opener)
    if abs(difference) > CLOCK_SECONDS:
        text = f"it is {clock_text(difference)} that of the database"
        return DoctorFinding("clock", FindingState.WRONG, text, CLOCK_FIX)
    now = datetime.now(UTC)
    text = f"{now:%Y-%m-%d %H:%M} UTC"
    if _is_synchronized() is False:
        text += ", and nothing keeps it right"
        return DoctorFinding("clock", FindingState.NOTE, text, CLOCK_FIX)
    return DoctorFinding("clock", FindingState.GOOD, text)


def _difference_from_database(opener: Opener) -> float:
    """Return by how many seconds this clock is ahead of that of PostgreSQL; 0 for SQLite."""
    backend = _backend(opener)
    if backend.address == SQLITE or not backend.exists:
        return 0.0
    database = Database(backend)
    try:
        with database.read() as connection:
            return clock_difference(connection)
    finally:
        database.close()


def _seconds_ahead(folder: Path) -> float:
    """Return how far in the future the newest file of the home was written."""
    if not folder.exists():
        return 0.0
    return max((path.stat().st_mtime for path in folder.glob("*")), default=0.0) - time.time()


def _is_synchronized() -> bool | None:
    """Return whether a time server sets the clock; None where systemd cannot say."""
    command = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(done.stdout.strip())
