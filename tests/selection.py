"""Gives pytest the option `--tests SET` (tests/sets.py says which sets there are), and writes with
`--record FILE` how long each test took and how much of the processor, from which
tests/full_run.py makes the record of a full run. A session that was stopped goes on with the same
command: tests that passed are not run again, unless a commit since then reaches them.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.sets import (
    ALWAYS,
    BY_TOUCH,
    ELSEWHERE,
    PACKAGES,
    QUICK_SECONDS,
    TOUCHED_SECONDS,
    UNKNOWN_SECONDS,
    is_always,
)
from tests.touched import LastFullRun, Reach, changed_files, git, is_stale

NAMES = ("quick", "fast", "always", "touched", "ci", "everything")
COUNTED = pytest.StashKey[str]()
COUNTED_KEY = "counted_tests"
PROCESSOR = "processor_seconds"
"""Name of the property of a report that says what a phase of a test took of the processor."""
WORKERS = 2
"""Processes that run the tests of a full run side by side (Makefile)."""
TWIN = "[postgresql"
"""In the name of a test of a store that also runs on SQLite."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("thumbwheel")
    group.addoption("--tests", choices=NAMES, help="which set of tests/sets.py to run")
    group.addoption(
        "--touched-seconds",
        type=float,
        default=TOUCHED_SECONDS,
        help="of slow tests that a change reaches, `ci` runs so many seconds' worth",
    )
    group.addoption("--record", type=Path, help="a file for how long each test took")


def pytest_configure(config: pytest.Config) -> None:
    if record := config.getoption("record"):
        config.pluginmanager.register(ProcessorClock())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Recorder(record))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of which `quick` runs nothing, which import torch more than others."""
    if config.getoption("tests") != "quick" or not collection_path.is_file():
        return None
    file = collection_path.relative_to(config.rootpath).as_posix()
    return True if not is_quick(file) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the set that was asked for."""
    name = config.getoption("tests")
    if name is None:
        return
    check_names(items)
    available = [item for item in items if not markers(item) & set(ELSEWHERE)]
    touched_seconds = config.getoption("touched_seconds")
    names = {item.nodeid for item in chosen(available, name, touched_seconds)}
    if record := config.getoption("record"):
        names -= passed_before(record).keys()
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
    items[:] = [item for item in items if item.nodeid in names]
    n_slow = sum(not is_fast(item) for item in items)
    n_all = sum(not is_fast(item) for item in available)
    counted = f"{len(items) - n_slow} fast tests, {n_slow} of {n_all} slow ones"
    config.stash[COUNTED] = f"--tests {name}: {counted}"
    if hasattr(config, "workeroutput"):
        config.workeroutput[COUNTED_KEY] = config.stash[COUNTED]


def pytest_collection_finish() -> None:
    """Spare the garbage collector the millions of objects that imported modules consist of."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of xdist counted."""
    if text := getattr(node, "workeroutput", {}).get(COUNTED_KEY):
        node.config.stash[COUNTED] = text


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if text := config.stash.get(COUNTED, None):
        terminalreporter.write_line(text)


def check_names(items: list[pytest.Item]) -> None:
    """Raise UsageError for a name in sets.ALWAYS that no test has, though its file was collected in
    whole."""
    files = {file_of(item) for item in items}
    for beginning in ALWAYS:
        is_collected = beginning.split("::")[0] in files
        if is_collected and not any(item.nodeid.startswith(beginning) for item in items):
            raise pytest.UsageError(f"tests/sets.py: no test is called {beginning!r}")


def markers(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


def is_named(item: pytest.Item) -> bool:
    return is_always(item.nodeid)


def is_fast(item: pytest.Item) -> bool:
    """Return whether the test runs for every change without being named."""
    is_slow = item.nodeid in last_full_run().slow_seconds
    return not is_slow and not markers(item) & {*BY_TOUCH, *ELSEWHERE} and TWIN not in item.nodeid


@cache
def last_full_run() -> LastFullRun:
    return LastFullRun.read()


def fast(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if is_fast(item)]


def quick(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the fast tests of the files that take a moment."""
    return [item for item in fast(items) if is_quick(file_of(item))]


def is_quick(file: str) -> bool:
    """Return whether the tests of a file take a moment each; True where no full run knows it."""
    return last_full_run().file_seconds.get(file, 0.0) <= QUICK_SECONDS


def always(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if is_fast(item) or is_named(item)]


def touched(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return what always runs, and every slow test that the change since the last full run reaches;
    all slow tests where the history does not have that run."""
    near = nearness(last_full_run().commit)
    return [item for item in items if is_fast(item) or is_named(item) or near(item) is not None]


def ci(items: list[pytest.Item], touched_seconds: float) -> list[pytest.Item]:
    """Return what always runs, and of the slow tests the nearest that fit into `touched_seconds`.

    Where the last full run is long ago, the slow tests are those of the third that the day of the
    commit draws. A commit that mends one of them the same day is proved by the same tests.
    """
    last = last_full_run()
    rest = [item for item in items if not is_fast(item) and not is_named(item)]
    day = date.fromisoformat(git("log", "-1", "--format=%cs", "HEAD"))
    if not is_known(last.commit) or is_stale(last.commit):
        turn = day.toordinal() % 3
        reached = [(0, item) for item in rest if digest(item.nodeid) % 3 == turn]
    else:
        near = nearness(last.commit)
        reached = [(distance, item) for item in rest if (distance := near(item)) is not None]
    reached.sort(key=lambda pair: (pair[0], digest(f"{day} {pair[1].nodeid}")))
    selected = always(items)
    seconds = 0.0
    for _, item in reached:
        cost = last.slow_seconds.get(item.nodeid, UNKNOWN_SECONDS)
        if seconds + cost <= touched_seconds:
            selected.append(item)
            seconds += cost
    return selected


def chosen(items: list[pytest.Item], name: str, touched_seconds: float) -> list[pytest.Item]:
    """Return the tests of the set called `name`."""
    if name != "everything":
        items = without_unreached_packages(items)
    match name:
        case "quick":
            return quick(items)
        case "fast":
            return fast(items)
        case "always":
            return always(items)
        case "touched":
            return touched(items)
        case "ci":
            return ci(items, touched_seconds)
        case _:
            return items


def without_unreached_packages(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests without those of packages/ that the change since the last full run does not
    reach."""
    if not any(item.nodeid.startswith(PACKAGES) for item in items):
        return items
    near = nearness(last_full_run().commit)
    return [
        item for item in items if not item.nodeid.startswith(PACKAGES) or near(item) is not None
    ]


def nearness(base: str) -> Callable[[pytest.Item], int | None]:
    """Return how far tests are from the change since `base`; 0 for all where that is unknown."""
    if not is_known(base):
        return lambda item: 0
    reach = Reach(changed_files(base))
    return lambda item: reach.distance(item.nodeid)


def is_known(commit: str) -> bool:
    """Return whether the history has this commit."""
    try:
        git("cat-file", "-e", f"{commit}^{{commit}}")
    except subprocess.CalledProcessError:
        return False
    return True


def digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def file_of(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]


def processor_seconds() -> float:
    """Return what this process and the children that it waited for took of the processor."""
    return sum(os.times()[:4])


class ProcessorClock:
    """Adds to each report of a test what its phase took of the processor: unlike its seconds, that
    does not grow while other programs are busy."""

    def __init__(self) -> None:
        self._before = processor_seconds()

    def pytest_runtest_logstart(self) -> None:
        self._before = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = processor_seconds()
        report.user_properties = [(PROCESSOR, now - self._before)]
        self._before = now
        return report


@cache
def state_of_checkout() -> str | None:
    """Return the commit that is checked out; None if a file differs from it."""
    return None if git("status", "--porcelain") else git("rev-parse", "HEAD")


@cache
def passed_before(record: Path) -> dict[str, dict[str, Any]]:
    """Return the tests that passed in an earlier session with this record and that no commit since
    then reaches, as test -> what is recorded of it."""
    state = state_of_checkout()
    if not record.is_file() or state is None:
        return {}
    earlier = json.loads(record.read_text(encoding="utf-8"))
    passed = {name: test for name, test in earlier["tests"].items() if test["outcome"] == "passed"}
    commit = earlier.get("commit")
    if commit == state:
        return passed
    if commit is None or not is_known(commit):
        return {}
    reach = Reach(changed_files(commit))
    return {name: test for name, test in passed.items() if reach.distance(name) is None}


class Recorder:
    """Writes how long each test took and what became of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._earlier = passed_before(path)
        self._began = time.monotonic()
        self._seconds: Counter[str] = Counter()
        self._processor: Counter[str] = Counter()
        self._outcomes: dict[str, str] = {}
        self._is_slow: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        self._processor[report.nodeid] += dict(report.user_properties).get(PROCESSOR, 0.0)
        self._is_slow[report.nodeid] = not report.keywords.keys().isdisjoint(BY_TOUCH)
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._earlier and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # an earlier session ran them all
        rows = {
            name: {
                "seconds": round(seconds, 2),
                "processor": round(self._processor[name], 2),
                "outcome": self._outcomes.get(name, "passed"),
                "is_slow": self._is_slow[name],
            }
            for name, seconds in sorted(self._seconds.items())
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Sessions before this one counted by their tests, since two workers ran them.
        seconds = time.monotonic() - self._began
        seconds += sum(test["seconds"] for test in self._earlier.values()) / WORKERS
        content = {
            "commit": state_of_checkout(),
            "seconds": seconds,
            "tests": self._earlier | rows,
        }
        self._path.write_text(json.dumps(content, indent=0), encoding="utf-8")
