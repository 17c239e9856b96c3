"""`benchmark`: tasks with checks from YAML files; a task's score is the share of its checks that
pass, without those that were skipped.

    id: basics
    name: Basics
    tasks:
      - {id: greet, prompt: "Say hello to Ada.", complexity: tutorial, tags: [tone], checks: [{type:
        contains, text: Ada}]}

`task_pattern` (a glob beside the file) adds tasks from other YAML files in its folder, and in no
other; `tags_filter` keeps those that have one of its tags. A task with attachments or of another
modality than text is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

from thumbwheel.core.config import Config, build
from thumbwheel.core.errors import ConfigError
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Answer, Ask, Measure
from thumbwheel.evaluation.validators import Reply, check, require

SCORE, PASSED = "benchmark score", "benchmark tasks passed whole"
RESPONSE = 2000
DEEPEST, MOST_VALUES = 32, 1_000_000
"""Of a file with tasks."""


class BenchmarkTask(Config):
    """One task."""

    id: str
    """Its name; results are known by it."""
    prompt: str
    """What is asked."""
    checks: tuple[dict[str, Any], ...]
    """Each a mapping with its type and parameters."""
    complexity: str = "tutorial"
    """tutorial, extended or phd."""
    modality: tuple[str, ...] = ("text",)
    """What it needs; only text is asked here."""
    tags: tuple[str, ...] = ()
    """Slices of the result."""
    attachments: tuple[str, ...] = ()
    """Files that belong to it."""
    ground_truth: str | None = None
    """What is true."""
    system: str | None = None
    """A system prompt."""


class Tasks(Config):
    """A suite of tasks."""

    id: str = "benchmark"
    """Its name."""
    name: str = ""
    """Its title."""
    tasks: tuple[BenchmarkTask, ...] = ()
    """The tasks themselves."""
    task_pattern: str | None = None
    """Files with one task or a list of tasks each, beside this one."""
    tags_filter: tuple[str, ...] = ()
    """Only tasks with one of these tags."""


class Benchmark(Suite):
    """See the module."""

    name: ClassVar[str] = "benchmark"

    def unfit(self) -> str:
        """Without a file."""
        if not self.config.benchmark:
            return "no file with tasks is named (benchmark)"
        return (
            "" if self.tasks else f"{self.config.benchmark!r} has no task that can be asked as text"
        )

    @cached_property
    def given(self) -> list[BenchmarkTask]:
        """All tasks. Raises ConfigError for files that are none."""
        at = Path(str(self.config.benchmark))
        paths = sorted(at.glob("*.y*ml")) if at.is_dir() else [at]
        found = [task for path in paths for task in _tasks(path)]
        for task in found:
            for one in task.checks:
                require(one, f"task {task.id!r}")
        return found

    @property
    def tasks(self) -> list[BenchmarkTask]:
        """Those that are asked as text alone."""
        return [
            task for task in self.given if set(task.modality) <= {"text"} and not task.attachments
        ]

    def content(self) -> Any:
        """The tasks."""
        return [task.model_dump(mode="json") for task in self.given]

    def asks(self) -> list[Ask]:
        """One prompt a task."""
        return [Ask(_messages(task), self.config.max_new_tokens) for task in self.tasks]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """The mean score first, tasks that passed whole beside it, slices by tag and complexity,
        every task in the details."""
        asked = [
            (task, both) for task, *both in zip(self.tasks, before, after, strict=True) if all(both)
        ]
        rows = [Row(task, *_results(task, both[0][0], both[1][0])) for task, both in asked]
        known = [row for row in rows if row.before["total_checks"] and row.after["total_checks"]]
        dropped = Counter(
            {"every check was skipped, or a side has no answer": n}
            if (n := len(self.tasks) - len(known))
            else {}
        )
        dropped += Counter(
            {"the task needs more than text": n} if (n := len(self.given) - len(self.tasks)) else {}
        )
        details = {"before": [row.before for row in rows], "after": [row.after for row in rows]}
        if not known:
            return SuiteMeasures(None, details=details, dropped=dropped)

        def measure(name: str, level: float, tag: str | None = None) -> Measure:
            chosen = [row for row in known if tag is None or tag in _slices(row.task)]
            of = _whole if name == PASSED else _score
            return compare.measure(
                name,
                [of(row.before) for row in chosen],
                [of(row.after) for row in chosen],
                [row.task.id for row in chosen],
                level,
            )

        tags = dict.fromkeys(tag for row in known for tag in _slices(row.task))
        level = self.config.level
        return SuiteMeasures(
            lambda wanted: measure(SCORE, wanted),
            (measure(PASSED, level),),
            tuple(measure(tag, level, tag) for tag in tags),
            details=details,
            dropped=dropped,
        )


class Row(NamedTuple):
    """A task and its results."""

    task: BenchmarkTask
    before: dict[str, Any]
    after: dict[str, Any]


def _score(result: dict[str, Any]) -> float:
    return float(result["score"])


def _whole(result: dict[str, Any]) -> float:
    return float(result["passed"] == result["total_checks"])


def _tasks(path: Path, patterns: bool = True) -> list[BenchmarkTask]:
    """The tasks of a file; with `patterns` also those of the files beside it that it names, whose
    own patterns are not followed."""
    found = _yaml(path)
    where = f"benchmark {str(path)!r}"
    if isinstance(found, list):
        return [build(BenchmarkTask, one, where) for one in found]
    if isinstance(found, dict) and "prompt" in found:
        return [build(BenchmarkTask, found, where)]
    suite = build(Tasks, found if isinstance(found, dict) else {"tasks": found}, where)
    tasks = list(suite.tasks)
    if suite.task_pattern and patterns:
        for other in _beside(path, suite.task_pattern):
            tasks += _tasks(other, patterns=False)
    wanted = set(suite.tags_filter)
    return [task for task in tasks if not wanted or wanted & set(task.tags)]


def _beside(path: Path, pattern: str) -> list[Path]:
    """The YAML files in the folder of `path` that its pattern names. A file that somebody sent
    reads nothing elsewhere by it.

    Raises ConfigError for a pattern that leaves the folder.
    """
    folder = path.parent.resolve()
    what, fix = (
        f"task_pattern {pattern!r} in {str(path)!r}",
        "Name files in the folder of that file, as tasks/*.yaml",
    )
    if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts:
        raise ConfigError(what, "it leads out of the folder of its file", fix)
    try:
        matches = sorted(folder.glob(pattern))
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(what, f"it is no pattern of files ({error})", fix) from None
    others = []
    for match in matches:
        target = match.resolve()
        if not target.is_relative_to(folder):
            raise ConfigError(
                what, f"{match.name!r} is a link that leads out of the folder of its file", fix
            )
        if target.suffix in (".yaml", ".yml") and target.is_file() and target != path.resolve():
            others.append(match)
    return others


def _yaml(path: Path) -> Any:
    import yaml

    what, fix = f"benchmark {str(path)!r}", "Name a YAML file with tasks"
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(what, " ".join(str(error).split())[:200], fix) from None
    if (reason := _too_much(found)) is not None:
        raise ConfigError(what, reason, fix)
    return found


def _too_much(found: Any) -> str | None:
    """Why nobody should go through this value; None where it is of bounded depth and size. A name
    in YAML (&a, *a) may stand for a value that holds itself, and a short file for billions of
    values."""
    count, waiting = 0, [(found, 0)]
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if depth > DEEPEST:
            return f"it is nested deeper than {DEEPEST}"
        if count > MOST_VALUES:
            return f"it comes to more than {MOST_VALUES} values"
        if isinstance(value, dict):
            waiting += [(inner, depth + 1) for pair in value.items() for inner in pair]
        elif isinstance(value, list | tuple | set):
            waiting += [(inner, depth + 1) for inner in value]
    return None


def _messages(task: BenchmarkTask) -> list[dict[str, Any]]:
    user = {"role": "user", "content": task.prompt}
    return [{"role": "system", "content": task.system}, user] if task.system else [user]


def _slices(task: BenchmarkTask) -> list[str]:
    return [f"complexity={task.complexity}", *(f"tag={tag}" for tag in task.tags)]


def _results(task: BenchmarkTask, *answers: Answer) -> list[dict[str, Any]]:
    """The result of each answer; what nobody counted of one (time, tokens) is unknown of all, so
    that the same checks are made."""
    seconds, tokens = (
        all(getattr(one, name) is not None for one in answers) for name in ("seconds", "tokens")
    )
    return [
        _result(task, one, one.tokens if tokens else None, one.seconds if seconds else None)
        for one in answers
    ]


def _result(
    task: BenchmarkTask, answer: Answer, tokens: int | None, seconds: float | None
) -> dict[str, Any]:
    """In the form of the bench module; a cost is nobody's to know here."""
    reply = Reply(answer.text.strip(), tokens, seconds, None, task.ground_truth)
    checks = [check(one, reply) for one in task.checks]
    counted = [one for one in checks if not one["skipped"]]
    passed = sum(one["passed"] for one in counted)
    return {
        "task_id": task.id,
        "complexity": task.complexity,
        "tags": list(task.tags),
        "score": passed / len(counted) if counted else 0.0,
        "passed": passed,
        "total_checks": len(counted),
        "checks": checks,
        "response": answer.text[:RESPONSE],
        "latency_ms": None if answer.seconds is None else 1000 * answer.seconds,
        "tokens_in": answer.prompt_tokens,
        "tokens_out": answer.tokens,
        "cost": None,
        "tool_calls": [],
    }
