"""`benchmark`: tasks with checks from YAML files. A task's score is the share of its checks that
pass, without those that were skipped.

    id: basics
    name: Basics
    tasks:
      - id: greet
        prompt: "Say hello to Ada."
        complexity: tutorial
        tags: [tone]
        checks: [{type: contains, text: Ada}]

`task_pattern` (a glob) adds tasks from other YAML files of the same folder. `tags_filter` keeps the
tasks with one of its tags. A task with attachments or of another modality than text is left out and
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from thumbwheel.core.config import Config, build
from thumbwheel.core.errors import ConfigError
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Ask, Measure, ModelAnswer
from thumbwheel.evaluation.validators import CheckedReply, check, require_valid

SCORE, PASSED = "benchmark score", "benchmark tasks passed whole"
RESPONSE = 2000
"""Characters of an answer that a result shows."""
MAX_DEPTH, MAX_VALUES = 32, 1_000_000
"""Bounds of a file with tasks."""


class BenchmarkTask(Config):
    """One task."""

    id: str
    """Its name in results."""
    prompt: str
    """What is asked."""
    checks: tuple[dict[str, Any], ...]
    """Each a mapping with its type and parameters."""
    complexity: str = "tutorial"
    """tutorial, extended or phd."""
    modality: tuple[str, ...] = ("text",)
    """What the model has to read; tasks that need more than text are left out."""
    tags: tuple[str, ...] = ()
    """Slices of the result."""
    attachments: tuple[str, ...] = ()
    """Files that belong to it."""
    ground_truth: str | None = None
    """The facts against which an answer may be checked."""
    system: str | None = None
    """A system prompt."""

    @property
    def needs_only_text(self) -> bool:
        return set(self.modality) <= {"text"} and not self.attachments


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
    name: ClassVar[str] = "benchmark"

    def unfit(self) -> str:
        if not self.config.benchmark:
            return "no file with tasks is named (benchmark)"
        if not self.tasks:
            return f"{self.config.benchmark!r} has no task that can be asked as text"
        return ""

    @cached_property
    def all_tasks(self) -> list[BenchmarkTask]:
        """All tasks of the files. Raises ConfigError for a file without tasks."""
        path = Path(str(self.config.benchmark))
        files = sorted(path.glob("*.y*ml")) if path.is_dir() else [path]
        tasks = []
        for file in files:
            tasks += _tasks(file)
        for task in tasks:
            for params in task.checks:
                require_valid(params, f"task {task.id!r}")
        return tasks

    @property
    def tasks(self) -> list[BenchmarkTask]:
        """The tasks that need only text."""
        return [task for task in self.all_tasks if task.needs_only_text]

    def content(self) -> Any:
        """Return all tasks as JSON values."""
        return [task.model_dump(mode="json") for task in self.all_tasks]

    def asks(self) -> list[Ask]:
        """Return one prompt per task."""
        return [Ask(_messages(task), self.config.max_new_tokens) for task in self.tasks]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Measure the mean score first, then the tasks that passed all checks, slices by tag and
        complexity, and every task in the details."""
        rows = []
        for task, first, second in zip(self.tasks, before, after, strict=True):
            if first and second:
                rows.append(_row(task, first[0], second[0]))
        judged = [row for row in rows if row.before["total_checks"] and row.after["total_checks"]]
        dropped = Counter(
            {
                "every check was skipped, or a side has no answer": len(self.tasks) - len(judged),
                "the task needs more than text": len(self.all_tasks) - len(self.tasks),
            }
        )
        dropped = +dropped  # without zeros
        details = {"before": [row.before for row in rows], "after": [row.after for row in rows]}
        if not judged:
            return SuiteMeasures(None, details=details, dropped=dropped)

        by_slice: dict[str, list[TaskRow]] = {}
        for row in judged:
            for name in _slices(row.task):
                by_slice.setdefault(name, []).append(row)
        level = self.config.level
        return SuiteMeasures(
            lambda level: _measure(SCORE, judged, _score, level),
            (_measure(PASSED, judged, _all_passed, level),),
            tuple(_measure(name, rows, _score, level) for name, rows in by_slice.items()),
            details=details,
            dropped=dropped,
        )


@dataclass(frozen=True)
class TaskRow:
    """A task and its results."""

    task: BenchmarkTask
    before: dict[str, Any]
    after: dict[str, Any]


def _measure(
    name: str, rows: Sequence[TaskRow], value: Callable[[dict[str, Any]], float], level: float
) -> Measure:
    before = [value(row.before) for row in rows]
    after = [value(row.after) for row in rows]
    return compare.measure(name, before, after, [row.task.id for row in rows], level)


def _score(result: dict[str, Any]) -> float:
    return float(result["score"])


def _all_passed(result: dict[str, Any]) -> float:
    return float(result["passed"] == result["total_checks"])


def _tasks(path: Path, patterns: bool = True) -> list[BenchmarkTask]:
    """Read the tasks of a file. With `patterns` also read the files beside it that it names,
    without following their patterns."""
    content = _yaml(path)
    where = f"benchmark {str(path)!r}"
    if isinstance(content, list):
        return [build(BenchmarkTask, fields, where) for fields in content]
    if isinstance(content, dict) and "prompt" in content:
        return [build(BenchmarkTask, content, where)]
    suite = build(Tasks, content if isinstance(content, dict) else {"tasks": content}, where)
    tasks = list(suite.tasks)
    if suite.task_pattern and patterns:
        for other in _beside(path, suite.task_pattern):
            tasks += _tasks(other, patterns=False)
    wanted = set(suite.tags_filter)
    return [task for task in tasks if not wanted or wanted & set(task.tags)]


def _beside(path: Path, pattern: str) -> list[Path]:
    """Return the YAML files in the folder of `path` that its pattern matches.

    Raises ConfigError for a pattern that leaves the folder: a file from somebody else must not read
    other files.
    """
    folder = path.parent.resolve()
    what, fix = (
        f"task_pattern {pattern!r} in {str(path)!r}",
        "Name files in the folder of that file, as tasks/*.yaml",
    )
    if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts:
        raise ConfigError(what, "it leads outside the folder of its file", fix)
    try:
        matches = sorted(folder.glob(pattern))
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(what, f"it is not a valid file pattern ({error})", fix) from None
    others = []
    for match in matches:
        target = match.resolve()
        if not target.is_relative_to(folder):
            raise ConfigError(
                what, f"{match.name!r} is a link that leads outside the folder of its file", fix
            )
        if target.suffix in (".yaml", ".yml") and target.is_file() and target != path.resolve():
            others.append(match)
    return others


def _yaml(path: Path) -> Any:
    import yaml

    what, fix = f"benchmark {str(path)!r}", "Name a YAML file with tasks"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(what, " ".join(str(error).split())[:200], fix) from None
    if (reason := _too_large(content)) is not None:
        raise ConfigError(what, reason, fix)
    return content


def _too_large(content: Any) -> str | None:
    """Return why this value is too large; None if its depth and size are bounded. By aliases (&a,
    *a) a YAML value may contain itself, and a short file billions of values."""
    count, waiting = 0, [(content, 0)]
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if depth > MAX_DEPTH:
            return f"it is nested deeper than {MAX_DEPTH}"
        if count > MAX_VALUES:
            return f"it comes to more than {MAX_VALUES} values"
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


def _row(task: BenchmarkTask, before: ModelAnswer, after: ModelAnswer) -> TaskRow:
    """Return the results of both answers. Time or tokens that were not counted for one answer are
    unknown for both, so that the same checks are made."""
    timed = before.seconds is not None and after.seconds is not None
    counted = before.tokens is not None and after.tokens is not None
    return TaskRow(
        task, _result(task, before, timed, counted), _result(task, after, timed, counted)
    )


def _result(task: BenchmarkTask, answer: ModelAnswer, timed: bool, counted: bool) -> dict[str, Any]:
    """Return the result of one answer in the benchmark's format; its cost is unknown here."""
    tokens = answer.tokens if counted else None
    seconds = answer.seconds if timed else None
    reply = CheckedReply(answer.text.strip(), tokens, seconds, None, task.ground_truth)
    checks = [check(params, reply) for params in task.checks]
    decided = [result for result in checks if not result["skipped"]]
    passed = sum(result["passed"] for result in decided)
    return {
        "task_id": task.id,
        "complexity": task.complexity,
        "tags": list(task.tags),
        "score": passed / len(decided) if decided else 0.0,
        "passed": passed,
        "total_checks": len(decided),
        "checks": checks,
        "response": answer.text[:RESPONSE],
        "latency_ms": None if answer.seconds is None else 1000 * answer.seconds,
        "tokens_in": answer.prompt_tokens,
        "tokens_out": answer.tokens,
        "cost": None,
        "tool_calls": [],
    }
