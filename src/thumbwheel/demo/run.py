"""One turn of the wheel on the embedded world, by the public verbs that a user would type one after
the other.

The world's files go in by import, and the gate reads gold cases and nothing else. The simulator's
truth (world.json) is printed beside the result and never read by any verb.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import platformdirs

from thumbwheel.core import log
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.demo.app import DemoApp, real_app, tiny_app
from thumbwheel.demo.emit import WORLD, EmitOptions, Emitted, emit
from thumbwheel.demo.ship import Shown, show_deployment, show_llama_server, write_gguf
from thumbwheel.deploy import processes
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.loop.cycle_types import CycleReport

AGENT = "filer"
STORY = "a base that knows the common rules, a person who uses and rates it"
REAL_STORY = "a pretrained model that never saw this task, a person who corrects it"
REAL_OPTIONS = EmitOptions(ratings=150, noise=0.1, gold=150, corrections=0.8, mails=1.0)
"""What is emitted for a pretrained model. It files almost nothing right at first, so that there is
little to like, and the person writes what is wanted."""
REAL_METHODS = ("sft",)
"""The method that learns from corrections. Others would take longer than the twenty minutes."""
MARK = "demo.json"
"""File of a home that the demo made. The demo only clears folders that have it."""


@dataclass
class DemoResult:
    """What the demo ends with; `before`, `after` and the gain are shares of gold messages filed
    right, None where nothing was trained."""

    before: float | None = None
    after: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    decision: str = "rejected"
    report: str | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    method: str | None = None
    version: str | None = None
    reasons: list[str] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)
    export: str | None = None
    gguf: str | None = None
    served: str | None = None
    """What a llama-server answered from it."""
    deployment: Shown | None = None
    home: str = ""


def base_cache() -> Path:
    """Return the folder in which trained demo bases are kept between runs, by content hash."""
    return Path(platformdirs.user_cache_dir("thumbwheel")) / "demo"


def write_world(directory: Path, options: EmitOptions, is_real: bool = False) -> Emitted:
    """Write the world's files into `directory`; where the base is not `is_real`, a pretrained one,
    it lies beside them as `base/`. Training or downloading the base shows a progress bar."""
    from thumbwheel.engine.load import quiet_transformers

    _require_folder(directory, "--emit")
    if directory.exists() and any(directory.iterdir()) and not (directory / WORLD).is_file():
        raise Conflict(
            f"--emit {str(directory)!r}",
            "it contains files that are not a world of the demo",
            "Name a new folder",
        )
    with quiet_transformers():
        app = _app(is_real)
        with log.progress("the app answers the person's mail", None):
            files = emit(directory, options, app)
    if is_real:
        return files
    copy_folder(app.folder, directory / "base")
    return files._replace(app=replace(app, base=str(directory / "base")))


def _app(is_real: bool) -> DemoApp:
    """Return the app on a pretrained model where the demo `is_real`, else on the demo's own."""
    if is_real:
        return real_app()
    with base_progress() as progress:
        return tiny_app(base_cache(), progress=progress)


def run(home: Path, options: EmitOptions, is_real: bool = False) -> DemoResult:
    """Turn the wheel once in `home`, which starts afresh. Raises Conflict for a folder that is
    something else."""
    start, cpu_start = time.monotonic(), _cpu_seconds()
    clear_home(home, asdict(options))
    outcome = DemoResult(home=str(home))
    with Workspace.open(Home.at(home), Sources({}, "the demo's defaults", {})) as ws:
        log.say(f"home: {ws.home.path}")
        story = REAL_STORY if is_real else STORY
        with log.step(f"the world: {story}"):
            world = write_world(home / "world", options, is_real)
        turn(ws, world, outcome, REAL_METHODS if is_real else ())
    outcome.seconds, outcome.cpu_seconds = time.monotonic() - start, _cpu_seconds() - cpu_start
    return outcome


def turn(ws: Workspace, world: Emitted, outcome: DemoResult, methods: tuple[str, ...] = ()) -> None:
    """Import the world, turn the wheel once by these methods, by default all that the feedback
    permits, and show the approved version; `outcome` is filled as far as the turn gets."""
    from thumbwheel.loop.cycle import run_cycle
    from thumbwheel.loop.cycle_types import CycleConfig
    from thumbwheel.models.versions import require_agent

    with log.step("import"):
        import_world(ws, world)
    home = ws.home.path
    config = CycleConfig(
        base=world.app.base,
        methods=methods,
        export=("merged",),
        export_to=home / "model",
        report_to=home / "report.html",
    )
    cycle = run_cycle(ws, require_agent(ws, AGENT), config)
    outcome.plan = cycle.plan
    outcome.method, outcome.version, outcome.reasons = cycle.method, cycle.version, cycle.reasons
    if cycle.evaluation is not None:
        primary = cycle.evaluation.primary
        outcome.before, outcome.after, outcome.gain = primary.before, primary.after, primary.gain
        outcome.gain_low, outcome.gain_high = primary.low, primary.high
        outcome.report = str(cycle.report)
    if cycle.verdict is not None:
        outcome.decision = cycle.verdict.value
    if cycle.verdict is GateVerdict.APPROVED:
        outcome.export = str(cycle.exports[0].path)
        show(ws, world.app, cycle, outcome)


def show(ws: Workspace, app: DemoApp, cycle: CycleReport, outcome: DemoResult) -> None:
    """Let the approved version answer, take it back and put it forward again, and write it for
    llama.cpp; the report then says so too."""
    from thumbwheel.models import versions
    from thumbwheel.report.report import report

    assert cycle.evaluation is not None  # noqa: S101 - what was approved was evaluated
    assert cycle.report is not None  # noqa: S101
    version = versions.version(ws, AGENT, str(cycle.version))
    base = versions.by_id(ws, cycle.evaluation.against_id)
    changed = cycle.evaluation.examples
    with log.step("deploy it beside the base, ask both, roll back, go forward again"):
        outcome.deployment = show_deployment(ws, app, base, version, changed)
    with log.step("a GGUF file for llama.cpp and Ollama"):
        outcome.gguf = write_gguf(ws, version, ws.home.path / "gguf")
        log.say(f"  {outcome.gguf}")
        if "mean KL" in outcome.gguf:  # a file was written and compared with the trained model
            outcome.served = show_llama_server(ws, app, version, changed[0].prompt)
    report(ws, version, cycle.report, cycle.report.with_suffix(".json"))


def import_world(ws: Workspace, world: Emitted) -> None:
    """Import traces and feedback as an app recorded them, and gold cases as their owner reviewed
    them."""
    from thumbwheel.capture.ingest import ingest

    for path, reviewer in ((world.traces, None), (world.feedback, None), (world.gold, "owner")):
        report = ingest(ws, AGENT, "jsonl", path, reviewer=reviewer)
        log.say(
            f"  {path.name}: {report.stored} stored, {report.duplicates} duplicates, "
            f"{report.refused} refused"
        )


@contextmanager
def base_progress() -> Iterator[Any]:
    """Yield a callback (done, total, loss) for the base's training that shows its progress."""
    with log.progress("base model", None, "steps") as advance:
        shown = 0

        def show(done: int, total: int, loss: float) -> None:
            nonlocal shown
            advance(done - shown, f"loss {loss:.2f}", total)
            shown = done

        yield show


def _require_folder(path: Path, option: str) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{option} {str(path)!r}", "it is a file", "Name a new folder")


def clear_home(home: Path, options: Mapping[str, Any]) -> None:
    """Empty the home and mark it as made by the demo with these options. Raises Conflict for a
    folder that is something else."""
    import shutil

    _require_folder(home, "--home")
    if home.exists() and any(home.iterdir()):
        if not (home / MARK).exists():
            raise Conflict(
                f"demo home {str(home)!r}",
                "it contains files that the demo did not write",
                "Name another folder with --home",
            )
        for record in home.rglob(processes.RECORD):
            processes.stop(record.parent)
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / MARK).write_text(json.dumps(dict(options)))


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder; an existing `target` is removed."""
    import shutil

    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def _cpu_seconds() -> float:
    """Return the CPU-seconds of this process and its finished children."""
    import resource

    seconds = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        seconds += usage.ru_utime + usage.ru_stime
    return seconds
