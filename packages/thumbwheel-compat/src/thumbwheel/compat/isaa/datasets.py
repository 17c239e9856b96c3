"""The dataset builders of the agent's RL pipeline: traces in, KTO and GRPO examples out, as JSON
lines, JSON and Hugging Face datasets.

The prompt stays as it was asked. A person's label wins over a computed one, and a run with neither
is no example. Balancing and order follow from the examples themselves, not from chance or from the
order of the traces.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from thumbwheel.compat.isaa.checkpoints import CheckpointLoader
from thumbwheel.compat.isaa.collector import TraceCollector
from thumbwheel.compat.isaa.rewards import GOOD, RewardEngine
from thumbwheel.compat.isaa.tracefile import ExecutionTrace
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError, MissingExtra
from thumbwheel.rewards.combine import group_normalised

if TYPE_CHECKING:
    from datasets import Dataset

QUERY_KEY = 200
"""Characters of a question by which runs are grouped."""


@dataclass
class KTOExample:
    """An answer that is desirable (`label`) or not."""

    prompt: str
    completion: str
    label: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class GRPOExample:
    """Answers to one prompt with their group-normalised rewards."""

    prompt: str
    completions: list[str]
    rewards: list[float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Example = TypeVar("Example", KTOExample, GRPOExample)


class ExampleBuilder(Generic[Example]):
    """The prompt, the files and the Hugging Face dataset of both builders."""

    example: type[Example]

    def __init__(self, reward_engine: RewardEngine | None = None, system_prompt: str = "") -> None:
        self.reward_engine = reward_engine or RewardEngine()
        self.system_prompt = system_prompt

    def prompt_of(self, query: str) -> str:
        """Return the system prompt if there is one, a blank line, and the question."""
        return "\n\n".join(filter(None, [self.system_prompt, f"User: {query}"]))

    def save_dataset(
        self, examples: Sequence[Example], output_path: str | Path, format: str = "jsonl"
    ) -> None:
        """Write a file: `jsonl`, a line an example, or `json`, one list."""
        rows = [example.to_dict() for example in examples]
        if format == "jsonl":
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        elif format == "json":
            text = json.dumps(rows, ensure_ascii=False, indent=2) + "\n"
        else:
            raise InputError(f"format {format!r}", "there is no such format", "Known: jsonl, json")
        path = Path(output_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # a lone surrogate has no bytes in UTF-8, and only its JSON escape is read again
        path.write_text(text, encoding="utf-8", errors="backslashreplace")

    def load_dataset(self, input_path: str | Path) -> list[Example]:
        """Read a file that `save_dataset` wrote; raises InputError that names the row."""
        path = Path(input_path)
        try:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".jsonl":
                # not splitlines: an answer may hold U+2028 or U+0085, which JSON does not escape
                lines = [line for line in text.split("\n") if line.strip()]
                rows = [json.loads(line) for line in lines]
            else:
                rows = json.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                f"file {str(path)!r}", str(error), "Name a file that save_dataset wrote"
            ) from None
        if not isinstance(rows, list):
            raise InputError(
                f"file {str(path)!r}",
                "it is not a list of examples",
                "Name a file that save_dataset wrote",
            )
        examples = []
        for number, row in enumerate(rows, 1):
            if not isinstance(row, dict):
                raise InputError(
                    f"row {number} of {str(path)!r}",
                    "it is not an object",
                    "Name a file that save_dataset wrote",
                )
            try:
                examples.append(self.example(**row))
            except TypeError as error:
                raise InputError(
                    f"row {number} of {str(path)!r}",
                    str(error),
                    "Name a file that save_dataset wrote",
                ) from None
        return examples

    def to_hf_dataset(self, examples: Sequence[Example]) -> Dataset:
        """Return the examples as a Hugging Face dataset. Raises MissingExtra if `datasets` is not
        installed."""
        try:
            from datasets import Dataset
        except ImportError:
            raise MissingExtra.of("a Hugging Face dataset", "datasets", "train") from None
        return Dataset.from_list([example.to_dict() for example in examples])


class KTODatasetBuilder(ExampleBuilder[KTOExample]):
    """Examples of good and bad answers."""

    example = KTOExample

    def __init__(
        self,
        reward_engine: RewardEngine | None = None,
        reward_threshold: float = GOOD,
        system_prompt: str = "",
    ) -> None:
        super().__init__(reward_engine, system_prompt)
        self.reward_threshold = reward_threshold

    def trace_to_example(self, trace: ExecutionTrace) -> KTOExample | None:
        """Return the example of a run; None if nobody labelled it and it has no answer or no
        reward."""
        label = trace.label
        if label is None and trace.final_response.strip():
            label = self.reward_engine.get_binary_label(trace, self.reward_threshold)
        if label is None:
            return None
        return KTOExample(self.prompt_of(trace.user_query), trace.final_response, label)

    def build_dataset(
        self,
        traces: Iterable[ExecutionTrace],
        balance: bool = True,
        max_examples: int | None = None,
    ) -> list[KTOExample]:
        """Return the examples, ordered by a hash of their content; with `balance`, as many good as
        bad ones if there are both."""
        examples = []
        for trace in traces:
            example = self.trace_to_example(trace)
            if example is not None:
                examples.append(example)
        examples.sort(key=lambda example: ids.fingerprint(example.to_dict()))
        good = [example for example in examples if example.label]
        bad = [example for example in examples if not example.label]
        if balance and good and bad:
            count = min(len(good), len(bad))
            chosen = {id(example) for example in [*good[:count], *bad[:count]]}
            examples = [example for example in examples if id(example) in chosen]
        return examples[:max_examples]

    def build_from_collector(
        self, collector: TraceCollector, include_unlabeled: bool = True, **options: Any
    ) -> list[KTOExample]:
        """Build the examples of a collector's runs."""
        return self.build_dataset(
            collector.load_traces(labeled_only=not include_unlabeled), **options
        )

    def build_from_checkpoints(self, loader: CheckpointLoader, **options: Any) -> list[KTOExample]:
        """Build the examples of the runs in checkpoints."""
        return self.build_dataset(loader.load_all_traces(), **options)

    def get_statistics(self, examples: Sequence[KTOExample]) -> dict[str, Any]:
        """Return counts, positives for each negative, and average lengths in characters; None where
        there is nothing to divide by."""
        positives = sum(example.label for example in examples)
        negatives = len(examples) - positives
        return {
            "total": len(examples),
            "positives": positives,
            "negatives": negatives,
            "balance_ratio": positives / negatives if negatives else None,
            "avg_prompt_length": _mean([len(example.prompt) for example in examples]),
            "avg_completion_length": _mean([len(example.completion) for example in examples]),
        }


class GRPODatasetBuilder(ExampleBuilder[GRPOExample]):
    """Groups of answers to the same question."""

    example = GRPOExample

    def __init__(
        self,
        reward_engine: RewardEngine | None = None,
        num_completions: int = 4,
        system_prompt: str = "",
    ) -> None:
        super().__init__(reward_engine, system_prompt)
        self.num_completions = num_completions

    def group_traces_by_query(
        self, traces: Iterable[ExecutionTrace]
    ) -> dict[str, list[ExecutionTrace]]:
        """Group runs by question: in lower case, without extra spaces, cut to 200 characters. This
        is only the key; the prompt is not cut."""
        groups: dict[str, list[ExecutionTrace]] = {}
        for trace in traces:
            key = " ".join(trace.user_query.casefold().split())[:QUERY_KEY]
            groups.setdefault(key, []).append(trace)
        return groups

    def build_example_from_group(
        self, prompt: str, traces: Sequence[ExecutionTrace]
    ) -> GRPOExample | None:
        """Return the example of the runs of one question; None for fewer than two answers with a
        reward. A person's label is a reward of 1 or 0."""
        answers = []
        rewards = []
        for trace in traces:
            reward = self._reward(trace)
            if reward is not None:
                answers.append(trace.final_response)
                rewards.append(reward)
        answers = answers[: self.num_completions]
        if len(answers) < 2:
            return None
        advantages = group_normalised(rewards[: self.num_completions])
        return GRPOExample(
            self.prompt_of(prompt), answers, [float(advantage or 0.0) for advantage in advantages]
        )

    def build_dataset(
        self,
        traces: Iterable[ExecutionTrace],
        min_group_size: int = 2,
        max_examples: int | None = None,
    ) -> list[GRPOExample]:
        """Build one example for each question with at least `min_group_size` runs and two
        rewards."""
        examples = []
        for group in self.group_traces_by_query(traces).values():
            if len(group) < min_group_size:
                continue
            example = self.build_example_from_group(group[0].user_query, group)
            if example is not None:
                examples.append(example)
        examples.sort(key=lambda example: ids.fingerprint(example.to_dict()))
        return examples[:max_examples]

    def build_synthetic_groups(
        self,
        traces: Iterable[ExecutionTrace],
        agent_generate_func: Callable[[str], Any],
        num_generations: int = 4,
    ) -> list[GRPOExample]:
        """Ask the agent again: `num_generations` fresh answers to each question, judged by the
        engine.

        `agent_generate_func` is async, a question in and an answer out. An answer that fails is
        left out. Raises RuntimeError where an event loop runs already: call it in a thread.
        """
        return asyncio.run(self._synthetic_groups(traces, agent_generate_func, num_generations))

    async def _synthetic_groups(
        self,
        traces: Iterable[ExecutionTrace],
        agent_generate_func: Callable[[str], Any],
        num_generations: int,
    ) -> list[GRPOExample]:
        examples = []
        queries = dict.fromkeys(trace.user_query for trace in traces)
        for query in queries:
            runs = []
            for number in range(num_generations):
                try:
                    answer = str(await agent_generate_func(query))
                except Exception:  # noqa: BLE001 - one failure must not lose the other answers
                    continue
                trace_id = f"{ids.fingerprint(query)[:12]}-{number}"
                runs.append(ExecutionTrace(trace_id, user_query=query, final_response=answer))
            example = self.build_example_from_group(query, runs)
            if example is not None:
                examples.append(example)
        return examples

    def get_statistics(self, examples: Sequence[GRPOExample]) -> dict[str, Any]:
        """Return counts, answers per prompt, and mean and range of the rewards; None where there is
        nothing to average."""
        rewards: list[float] = []
        for example in examples:
            rewards += example.rewards
        counts = [len(example.completions) for example in examples]
        return {
            "total_examples": len(examples),
            "total_completions": sum(counts),
            "avg_completions_per_prompt": _mean(counts),
            "avg_reward": _mean(rewards),
            "reward_range": (min(rewards), max(rewards)) if rewards else None,
        }

    def _reward(self, trace: ExecutionTrace) -> float | None:
        if trace.label is not None:
            return float(trace.label)
        if not trace.final_response.strip():
            # an empty answer breaks no rule of form, so it would get a full reward
            return None
        return self.reward_engine.compute_combined(trace)


class DatasetPipeline:
    """From an agent's trace files and checkpoints to datasets."""

    def __init__(
        self,
        agent_name: str,
        storage_path: str | Path | None = None,
        system_prompt: str = "",
        checkpoint_path: str | Path | None = None,
    ) -> None:
        self.agent_name = agent_name
        self.system_prompt = system_prompt
        self.trace_collector = TraceCollector(storage_path)
        self.checkpoint_loader = CheckpointLoader(agent_name, checkpoint_path)
        self.reward_engine = RewardEngine()
        self.kto_builder = KTODatasetBuilder(self.reward_engine, system_prompt=system_prompt)
        self.grpo_builder = GRPODatasetBuilder(self.reward_engine, system_prompt=system_prompt)

    def collect_all_traces(self) -> list[ExecutionTrace]:
        """Return the runs of the trace files and the checkpoints, each once; not those of another
        agent."""
        agent = ids.slug_of(self.agent_name)
        traces = [*self.trace_collector.load_traces(), *self.checkpoint_loader.load_all_traces()]
        traces_by_id: dict[str, ExecutionTrace] = {}
        for trace in traces:
            name = trace.extra.get("agent")
            if not isinstance(name, str) or not name.strip() or ids.slug_of(name) == agent:
                traces_by_id[trace.trace_id] = trace
        return list(traces_by_id.values())

    def build_kto_dataset(self, output_path: str | Path, **options: Any) -> list[KTOExample]:
        """Build the examples and write them as JSON lines."""
        examples = self.kto_builder.build_dataset(self.collect_all_traces(), **options)
        self.kto_builder.save_dataset(examples, output_path)
        return examples

    def build_grpo_dataset(self, output_path: str | Path, **options: Any) -> list[GRPOExample]:
        """Build the groups and write them as JSON lines."""
        examples = self.grpo_builder.build_dataset(self.collect_all_traces(), **options)
        self.grpo_builder.save_dataset(examples, output_path)
        return examples

    def get_unlabeled_for_review(self, limit: int = 50) -> list[ExecutionTrace]:
        """Return the newest runs without a label, at most `limit`."""
        return self.trace_collector.get_unlabeled_traces(limit)

    def label_trace(self, trace_id: str, label: bool, notes: str = "") -> None:
        """Say that a run is good or bad."""
        self.trace_collector.label_trace(trace_id, label, notes)

    def get_pipeline_statistics(self) -> dict[str, Any]:
        """Return the collector's statistics, and the number and size (MB) of the checkpoints."""
        checkpoints = self.checkpoint_loader.list_checkpoints()
        size = sum(checkpoint["size_mb"] for checkpoint in checkpoints)
        return {
            "collector": self.trace_collector.get_statistics(),
            "checkpoints": {"count": len(checkpoints), "total_size_mb": size},
        }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
