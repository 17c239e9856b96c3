"""A home from Python, for notebooks and scripts: what `thumbwheel.open` returns.

The methods are the operations behind the commands, with the same settings, results and errors
(`thumbwheel.core.errors`). They run in this process, also where the home is served; a training has
a child process, as everywhere, and a KeyboardInterrupt stops it at a checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from thumbwheel.app.open import Opener
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, ModelVersion

if TYPE_CHECKING:
    import datasets
    import pandas

    from thumbwheel.capture.trace_types import ShownTrace, TraceSummary
    from thumbwheel.datasets.dataplan import DataPlan
    from thumbwheel.datasets.types import Dataset
    from thumbwheel.deploy.types import DeployedVersion
    from thumbwheel.evaluation.replay_types import ShownReplay
    from thumbwheel.evaluation.result import PolicyDecision
    from thumbwheel.evaluation.types import Evaluation
    from thumbwheel.export.types import Export
    from thumbwheel.importers.import_report import ImportReport
    from thumbwheel.training.types import ListedRun, RunComparison, RunResult

TRACES_AT_ONCE = 500
"""Traces that are read from the database, or asked from a server, at once."""


class OpenHome:
    """An open home. Use it as a context manager, or close it at the end."""

    def __init__(self, home: str | Path | None = None, config: str | Path | None = None) -> None:
        folder = None if home is None else Path(home)
        self._ws = Opener(folder, None if config is None else Path(config))()

    def __enter__(self) -> OpenHome:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish writing and close the files."""
        self._ws.__exit__(None, None, None)

    @property
    def path(self) -> Path:
        """The folder of the home."""
        return self._ws.home.path

    @property
    def agents(self) -> list[str]:
        """The names of the agents that the home has."""
        return [agent.slug for agent in versions.agents(self._ws)]

    def agent(self, name: str) -> OpenAgent:
        """Return the agent with this name. It exists once something of it is stored."""
        return OpenAgent(self._ws, Agent.named(name))


class OpenAgent:
    """An agent (an app) of an open home: its feedback, datasets and versions."""

    def __init__(self, ws: Workspace, agent: Agent) -> None:
        self._ws, self._agent = ws, agent

    @property
    def name(self) -> str:
        """The name of the agent."""
        return self._agent.slug

    def import_(
        self,
        path: str | Path,
        source: str | None = None,
        *,
        gold: bool = False,
        reviewer: str = "owner",
        columns: Sequence[str] = (),
        scales: Sequence[str] = (),
        rejects: str | Path | None = None,
        dry_run: bool = False,
    ) -> ImportReport:
        """Import a file, folder or address, and return a report with counts of its lines.

        Args:
            path: The file, folder or address.
            source: The format; None detects it from the first rows.
            gold: `reviewer` has reviewed the cases in it.
            reviewer: The reviewer's name.
            columns: COLUMN=MEANING of a table, as in the option `--column`.
            scales: The ends of a scale, as in the option `--scale`.
            rejects: A file to which every refused line is written.
            dry_run: Read and check; store nothing.

        Raises:
            InputError: No source can read it, or several can.
        """
        from thumbwheel.capture.jobs import ImportSpec, imported
        from thumbwheel.importers.location import path_or_address

        location = path_or_address(str(path))
        if source is None:
            source = detected_source(location, columns, scales, gold=gold)
        spec = ImportSpec(
            source=source,
            agent=self.name,
            column=tuple(columns),
            scale=tuple(scales),
            gold=gold,
            reviewer=reviewer,
            rejects=None if rejects is None else Path(rejects),
            dry_run=dry_run,
        )
        return imported(self._ws, spec, location)

    def traces(self, most: int = 100, **filters: Any) -> list[TraceSummary]:
        """Return the newest traces with the feedback about them; long texts are shortened.

        Args:
            most: The number of traces.
            filters: The options of `thumbwheel traces list`: session, subject, model, version,
                status, since, until, text, rated, judged.

        Raises:
            NotFound: Nothing of the agent is stored.
        """
        from thumbwheel.capture.trace_options import require_filters, trace_filter
        from thumbwheel.capture.traces import list_traces

        require_filters(filters)
        wanted = trace_filter(**filters)
        traces: list[TraceSummary] = []
        after = None
        while len(traces) < most:
            limit = min(most - len(traces), TRACES_AT_ONCE)
            page = list_traces(self._ws, self.name, wanted, limit=limit, after=after)
            traces += page.traces
            after = page.after
            if after is None:
                break
        return traces

    def trace(self, name: str) -> ShownTrace:
        """Return a trace by its id, or its name in its source: the whole conversation, every step,
        the answer, and the feedback.

        Raises:
            NotFound: There is no such trace.
        """
        from thumbwheel.capture.traces import show_trace

        return show_trace(self._ws, self.name, name)

    def plan(self, **settings: Any) -> DataPlan:
        """Return the current data plan; `settings` belong to the section `dataset`.

        Raises:
            NotFound: Nothing of the agent is stored.
        """
        from thumbwheel.datasets.types import DatasetConfig
        from thumbwheel.training.data_plan import data_plan

        return data_plan(self._ws, self.name, self._ws.settings(DatasetConfig, "dataset", settings))

    def build(
        self, shape: str | None = None, *, method: str = "auto", **settings: Any
    ) -> FrozenDataset:
        """Freeze a dataset and return it. The same feedback and settings give the same one.

        Args:
            shape: The kind of rows: chats, pairs, labels, scored, prompts or groups; None takes
                the one that `method` needs.
            method: The training method; `auto` takes the one that the plan recommends.
            settings: Settings of the section `dataset`.
        """
        from thumbwheel.datasets.build import build
        from thumbwheel.datasets.types import DatasetConfig
        from thumbwheel.training.data_plan import choose

        config = self._ws.settings(DatasetConfig, "dataset", settings)
        if shape is None:
            shape = choose(self._ws, self.name, method, config).shape
        return FrozenDataset(self._ws, build(self._ws, self.name, shape, config))

    def dataset(self, name: str = "latest") -> FrozenDataset:
        """Return a frozen dataset by its id, or the latest."""
        from thumbwheel.datasets.build import find

        return FrozenDataset(self._ws, find(self._ws, self.name, name))

    def train(
        self,
        method: str,
        base: str | Path,
        *,
        dataset: FrozenDataset | str | None = None,
        callbacks: Sequence[str | type] = (),
        **settings: Any,
    ) -> RunResult:
        """Train a candidate version and return the result of the run.

        Args:
            method: sft, dpo, kto, reward, grpo, grpo_offline or ppo.
            base: A folder with a model, or its Hugging Face id.
            dataset: The dataset; None builds it from the feedback in force.
            callbacks: transformers.TrainerCallback classes, as such or as "module:Class". They are
                imported in the child process, so they must be defined in a module.
            settings: Settings of the method (`thumbwheel train METHOD --help`).

        Raises:
            TrainingError: The run failed; its message names the log.
        """
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.training.train import train

        options = dict(settings)
        if callbacks:
            options["callbacks"] = [_location(callback) for callback in callbacks]
        if isinstance(dataset, str):
            dataset = self.dataset(dataset)
        return train(
            self._ws,
            versions.require_agent(self._ws, self.name),
            method,
            find_base(str(base), self._ws.home.cache),
            dataset=None if dataset is None else dataset.record,
            options=options,
        )

    @property
    def runs(self) -> list[ListedRun]:
        """The training runs of the agent, the oldest first, each with its settings, its figures,
        and the version that it gave."""
        from thumbwheel.training.run_list import listed_runs

        return listed_runs(self._ws, versions.require_agent(self._ws, self.name))

    def compare_runs(self, *runs: str) -> RunComparison:
        """Compare runs by their ids: what they came to, and the settings that differ.

        Raises:
            InputError: There are too few or too many.
            NotFound: There is no such run; the message lists the existing ones.
        """
        from thumbwheel.training.run_list import compare_runs

        return compare_runs(self._ws, versions.require_agent(self._ws, self.name), runs)

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """Return what a run logged: a dict for each step and each evaluation, the first one first.
        `pandas.DataFrame` makes a table of it.

        Raises:
            NotFound: There is no such run; the message lists the existing ones.
        """
        from thumbwheel.training.train import metrics_of, run_of

        agent = versions.require_agent(self._ws, self.name)
        return metrics_of(self._ws, run_of(self._ws, agent, run))

    @property
    def versions(self) -> list[ModelVersion]:
        """The model versions of the agent, the first one first."""
        return versions.versions(self._ws, versions.require_agent(self._ws, self.name))

    def version(self, name: str = "latest") -> ModelVersion:
        """Return a version by its name (`v3`), an alias, `latest` or an id.

        Raises:
            NotFound: There is no such version; the message lists the existing names.
        """
        return versions.version(self._ws, self.name, name)

    def evaluate(
        self, version: str = "latest", *, against: str | None = None, **settings: Any
    ) -> Evaluation:
        """Compare a version with the live one, or with `against`, on rows that neither was trained
        on.

        `settings` belong to the section `evaluation`. Raises DataError if no row can decide.
        """
        from thumbwheel.evaluation.evaluate import evaluate
        from thumbwheel.evaluation.types import EvaluationConfig

        config = self._ws.settings(EvaluationConfig, "evaluation", settings)
        incumbent = None if against is None else self.version(against)
        return evaluate(self._ws, self.version(version), config, against=incumbent)

    def replay(
        self,
        version: str = "latest",
        *,
        traces: Sequence[str] = (),
        most: int = 50,
        max_new_tokens: int = 256,
    ) -> ShownReplay:
        """Let a version answer recorded traces again; return its answers beside the recorded ones.

        Args:
            version: The version's name, an alias, `latest` or an id; it need not be deployed.
            traces: Ids of traces; without any, the newest answered ones.
            most: The number of traces, if none are named.
            max_new_tokens: The most tokens of an answer.

        Raises:
            DataError: Nothing is recorded, or none of the traces could be answered.
        """
        from thumbwheel.capture.trace_filter import TraceFilter
        from thumbwheel.evaluation.replay_types import ReplaySpec
        from thumbwheel.evaluation.trace_replay import replay_traces, select_traces, show_replay

        agent = versions.require_agent(self._ws, self.name)
        trace_ids = select_traces(self._ws, agent, TraceFilter(), most, traces)
        spec = ReplaySpec(
            version=version,
            agent=self.name,
            traces=tuple(trace_ids),
            max_new_tokens=max_new_tokens,
        )
        result = replay_traces(self._ws, spec)
        result.require_answers()
        return show_replay(self._ws, agent, result.id)

    def gate(self, evaluation: Evaluation) -> PolicyDecision:
        """Return the gate's decision by the agent's declared policy."""
        from thumbwheel.evaluation.gate import gate
        from thumbwheel.evaluation.result import PolicyDecision

        return PolicyDecision.of(gate(self._ws, evaluation))

    def export(
        self,
        version: str = "latest",
        format: str = "merged",
        *,
        to: str | Path | None = None,
        quant: str | None = None,
    ) -> Export:
        """Export a version as files, compare them with the trained model, and return the export.

        Args:
            version: The version's name, an alias, `latest` or an id.
            format: adapter, merged, gguf, lora_gguf or onnx.
            to: A new or empty folder; None takes one in the home.
            quant: The precision of a GGUF file, such as Q8_0.
        """
        from thumbwheel.export.package import export

        folder = None if to is None else Path(to)
        return export(self._ws, self.version(version), format, to=folder, quant=quant)

    def deploy(
        self,
        version: str = "latest",
        target: str = "embedded",
        *,
        alias: str = "live",
        **settings: Any,
    ) -> DeployedVersion:
        """Deploy a version on a target, and move the alias once a check has passed.

        `settings` belong to the target. Raises Conflict if the gate did not permit it.
        """
        from thumbwheel.deploy.deploy import deploy
        from thumbwheel.deploy.types import DeployedVersion

        result = deploy(self._ws, self.version(version), target, alias, settings=settings)
        return DeployedVersion.of(result.deployment, result.switch)


class HomeDataset(ABC):
    """A dataset of a home, here or on a server: frozen rows in the splits train, dev and gate."""

    def __init__(self, record: Dataset) -> None:
        self.record = record
        """Id, shape and manifest."""

    @property
    def id(self) -> str:
        """The id, made from the content."""
        return self.record.id

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of rows of each split."""
        return self.record.counts

    @abstractmethod
    def rows(self, split: str = "train") -> Iterator[dict[str, Any]]:
        """Yield the rows of a split, one at a time, with all their fields."""

    @abstractmethod
    def to_hf(self) -> datasets.DatasetDict:
        """Return the splits that have rows as a Hugging Face DatasetDict, in TRL's columns.

        Raises:
            MissingExtra: `datasets` is not installed.
        """

    def to_pandas(self, split: str = "train") -> pandas.DataFrame:
        """Return the rows of a split as a data frame, a column for each field.

        Raises:
            MissingExtra: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            from thumbwheel.core.errors import MissingExtra

            raise MissingExtra.of("a data frame", "pandas", "train") from None
        return pandas.DataFrame(list(self.rows(split)))


class FrozenDataset(HomeDataset):
    """A dataset of an open home."""

    def __init__(self, ws: Workspace, record: Dataset) -> None:
        super().__init__(record)
        self._ws = ws

    def rows(self, split: str = "train") -> Iterator[dict[str, Any]]:
        """Yield the rows of a split, one at a time, with all their fields."""
        from thumbwheel.datasets.build import split_rows

        yield from split_rows(self._ws, self.record, split)

    def to_hf(self) -> datasets.DatasetDict:
        """Return the splits that have rows as a Hugging Face DatasetDict, in TRL's columns.

        Raises:
            MissingExtra: `datasets` is not installed.
        """
        from thumbwheel.datasets.export import as_hf

        return as_hf(self._ws, self.record)


def detected_source(
    location: Path, columns: Sequence[str], scales: Sequence[str], *, gold: bool
) -> str:
    """Return the source that reads a file, folder or address. Raises InputError if none can, or
    several can."""
    from thumbwheel.importers.detect import Options, detect

    return detect(location, Options.parsed(list(columns), list(scales), gold=gold)).source


def _location(callback: str | type) -> str:
    """Return "module:Class", by which the child process imports a callback."""
    if isinstance(callback, str):
        return callback
    if callback.__module__ == "__main__" or "." in callback.__qualname__:
        raise InputError(
            f"callback {callback.__qualname__}",
            "the training runs in another process, which cannot import a class from a notebook",
            "Write the class into a file beside it and import it from there",
        )
    return f"{callback.__module__}:{callback.__qualname__}"
