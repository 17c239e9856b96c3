"""`CheckpointLoader`: the runs in FlowAgent checkpoints, as `ExecutionTrace`s. A pickle is parsed,
never loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thumbwheel.compat.isaa.tracefile import ExecutionTrace, ReasoningStep, ToolCallTrace
from thumbwheel.core import log
from thumbwheel.core.config import Home
from thumbwheel.core.ids import slug_of
from thumbwheel.importers.source import Line, Refused
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.types import StepRecord, TraceRecord


class CheckpointLoader:
    """The checkpoints of an agent below `checkpoint_path` (default: Agents/checkpoint/AGENT in the
    home). Without an agent they are those of all agents, which have a folder each."""

    def __init__(
        self, agent_name: str | None = None, checkpoint_path: str | Path | None = None
    ) -> None:
        self.agent_name = agent_name
        if checkpoint_path:
            self.checkpoint_path = Path(checkpoint_path)
        elif agent_name is None:
            self.checkpoint_path = checkpoints_below(Home.at().path)
        else:
            self.checkpoint_path = checkpoint_folder(Home.at().path, agent_name)

    def discover_all_agents(self) -> list[str]:
        """Return the names of all agents that have checkpoints, this one included."""
        folder = self.checkpoint_path
        # the folder of one agent stands among those of the others
        if self.agent_name is not None or any(folder.glob("*.pkl")):
            folder = folder.parent
        return sorted({path.parent.name for path in folder.glob("*/*.pkl")})

    def _files(self) -> list[Path]:
        """Return the files of the agent, or of all agents."""
        files = list(self.checkpoint_path.glob("*.pkl"))
        if self.agent_name is None:
            files += self.checkpoint_path.glob("*/*.pkl")
        return sorted(files)

    def list_checkpoints(self) -> list[dict[str, Any]]:
        """Return path, filename, size_mb and modified (UTC) of each checkpoint, the newest
        first."""
        checkpoints: list[dict[str, Any]] = []
        for path in self._files():
            if not path.is_file():
                continue
            status = path.stat()
            checkpoint = {
                "path": str(path),
                "filename": path.name,
                "size_mb": status.st_size / 1e6,
                "modified": datetime.fromtimestamp(status.st_mtime, UTC),
            }
            checkpoints.append(checkpoint)
        checkpoints.sort(key=lambda checkpoint: checkpoint["modified"], reverse=True)
        return checkpoints

    def load_checkpoint(self, filepath: str | Path) -> list[ExecutionTrace]:
        """Return the runs of one checkpoint. A file of another kind, or one that names anything but
        a checkpoint's own data, is reported and skipped."""
        return list(self._traces(Path(filepath)))

    def extract_traces_from_checkpoint(
        self, checkpoint: Iterable[ExecutionTrace]
    ) -> list[ExecutionTrace]:
        """Return the runs of what `load_checkpoint` gave, which is these runs alone: of a file that
        is parsed and never loaded there is no object."""
        return list(checkpoint)

    def load_all_traces(self, deduplicate: bool = True) -> list[ExecutionTrace]:
        """Return the runs of all checkpoints. A turn that several of them contain is returned once,
        unless `deduplicate` is off."""
        traces: list[ExecutionTrace] = []
        seen: set[str] = set()
        for path in self._files():
            for trace in self._traces(path):
                if deduplicate and trace.trace_id in seen:
                    continue
                seen.add(trace.trace_id)
                traces.append(trace)
        return traces

    def generate_synthetic_tasks(self, num_tasks: int = 100) -> list[dict[str, str]]:
        """Return the prompts of runs that ended well, each once, as tasks for a fresh answer:
        prompt, category and source."""
        prompts = dict.fromkeys(
            trace.user_query for trace in self.load_all_traces() if trace.status == "ok"
        )
        tasks = [
            {"prompt": prompt, "category": _category(prompt), "source": "checkpoint_derived"}
            for prompt in prompts
        ]
        return tasks[:num_tasks]

    def get_statistics(self) -> dict[str, Any]:
        """Return counts and averages over the distinct runs. An average of nothing is None, as is a
        total of which a part is unknown."""
        traces = self.load_all_traces()
        used: set[str] = set()
        for trace in traces:
            used |= {call.tool_name for call in trace.tool_calls}
        tools = sorted(used)
        labelled = sum(trace.label is not None for trace in traces)
        return {
            "total_traces": len(traces),
            "unique_sessions": len({trace.session_id for trace in traces}),
            "labeled_traces": labelled,
            "unlabeled_traces": len(traces) - labelled,
            "traces_with_tool_calls": sum(bool(trace.tool_calls) for trace in traces),
            "traces_with_reasoning": sum(bool(trace.reasoning_steps) for trace in traces),
            "unique_tools_used": len(tools),
            "tools_list": tools,
            "avg_query_length": _mean([len(trace.user_query) for trace in traces]),
            "avg_response_length": _mean([len(trace.final_response) for trace in traces]),
            "total_tokens_in": _total([trace.total_tokens_in for trace in traces]),
            "total_tokens_out": _total([trace.total_tokens_out for trace in traces]),
            "total_cost": _total([trace.total_cost for trace in traces]),
            "agents_discovered": self.discover_all_agents(),
            "checkpoints_available": len(self.list_checkpoints()),
        }

    def _traces(self, path: Path) -> Iterator[ExecutionTrace]:
        for item in SOURCES.get("flowagent").read(path, lambda position: None):
            if isinstance(item, Refused):
                log.say(f"skipped: {item.reason}")
            elif isinstance(item, Line):
                for record in item.records:
                    if isinstance(record, TraceRecord):
                        yield _trace(record)


def checkpoints_below(home: Path) -> Path:
    """Return the folder of all agents' checkpoints."""
    return home / "Agents" / "checkpoint"


def checkpoint_folder(home: Path, agent_name: str) -> Path:
    """Return the folder of an agent's checkpoints, called like the agent or like its slug. Raises
    InputError for a name that is a path."""
    agent = slug_of(agent_name)
    folder = checkpoints_below(home)
    for child in sorted(folder.glob("*/")):
        if child.name == agent_name:
            return child
    return folder / agent


def _trace(record: TraceRecord) -> ExecutionTrace:
    trace = ExecutionTrace(
        trace_id=record.external_id,
        session_id=record.session or "default",
        timestamp=record.occurred_at.isoformat() if record.occurred_at else "",
        user_query=_last_question(record),
        final_response=record.output or "",
    )
    for step in record.steps:
        if step.kind == "tool":
            trace.tool_calls.append(_tool_call(step))
        elif step.kind == "reasoning":
            trace.reasoning_steps.append(
                ReasoningStep(step.name or "internal_reasoning", str(step.output or ""))
            )
        elif step.kind == "task":
            _add_task(trace, step)
    if record.status == "error":
        trace.tasks_failed.append({"type": "execution_error", "error": trace.final_response})
    return trace


def _last_question(record: TraceRecord) -> str:
    questions = [message for message in record.input if message.get("role") == "user"]
    return str(questions[-1].get("content") or "") if questions else ""


def _tool_call(step: StepRecord) -> ToolCallTrace:
    failed = step.status != "ok"
    result = "" if step.output is None else str(step.output)
    return ToolCallTrace(
        tool_name=step.name or "tool",
        arguments=step.input,
        result="" if failed else result,
        success=not failed,
        error=result if failed else None,
    )


def _add_task(trace: ExecutionTrace, step: StepRecord) -> None:
    """Add the task of a step to the created tasks, and also to the completed or failed ones if its
    status is known."""
    task = dict(step.input or {}) | {"type": step.name or "task"}
    trace.tasks_created.append(task)
    if step.status == "completed":
        trace.tasks_completed.append(task | {"result": step.output})
    elif step.status == "failed":
        trace.tasks_failed.append(task | {"error": step.output})


CATEGORIES = {
    "code_tasks": ("code", "python", "script", "function", "class"),
    "shell_tasks": ("run", "execute", "shell", "command", "terminal"),
    "interaction_tasks": ("remind", "help", "suggest", "what should"),
}


def _category(prompt: str) -> str:
    text = prompt.casefold()
    for category, words in CATEGORIES.items():
        if any(word in text for word in words):
            return category
    return "general_tasks"


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None


def _total(values: list[Any]) -> Any:
    """Return the sum; None if there are no values or one of them is unknown."""
    return sum(values) if values and None not in values else None
