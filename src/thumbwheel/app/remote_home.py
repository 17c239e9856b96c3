"""A home of a server from Python: what `thumbwheel.connect` returns.

The classes have the methods of those in python_api.py, with the same results and errors. Each
method is a request of the API, named in CALLS. Long work is a job of the server, and its progress
is shown until it ends. A request names nothing of the server's machine: no file to write there, no
code, no address. tests/unit/app/test_remote_home.py compares the methods with those of an open
home, and CALLS with the routes.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter

from thumbwheel import sdk
from thumbwheel.app.python_api import TRACES_AT_ONCE, HomeDataset, detected_source
from thumbwheel.app.server_client import (
    PIECE,
    RemoteOperation,
    ServerClient,
    file_to_upload,
    json_of,
    require_empty,
    unpack,
)
from thumbwheel.capture.trace_options import require_filters
from thumbwheel.capture.trace_types import ShownTrace, TracePage, TraceSummary
from thumbwheel.core.errors import ConfigError, InputError, MissingExtra, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets.dataplan import ConcludedPlan, DataPlan
from thumbwheel.datasets.types import SPLITS, BuiltDataset, Dataset, DatasetConfig, ShownDataset
from thumbwheel.deploy.types import DeployedVersion
from thumbwheel.evaluation.replay_types import ShownReplay, TraceReplay
from thumbwheel.evaluation.result import EvaluationResult, PolicyDecision
from thumbwheel.evaluation.types import Evaluation, EvaluationConfig
from thumbwheel.export.types import CheckedExport, Export
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.loop.cycle_types import TrainResult
from thumbwheel.models.types import ListedVersion, ModelVersion
from thumbwheel.models.versions import version_named
from thumbwheel.training.types import ListedRun, RunComparison, RunResult

if TYPE_CHECKING:
    import datasets

T = TypeVar("T")
JSON = "application/json"


@dataclass(frozen=True)
class RemoteCall(Generic[T]):
    """A request that a method makes: the id of its operation, and the class of its answer."""

    operation: str
    answer: TypeAdapter[T]


def _call(operation: str, answer: type[T]) -> RemoteCall[T]:
    return RemoteCall(operation, TypeAdapter(answer))


AGENTS = RemoteCall("agents.list", TypeAdapter(list[dict[str, str]]))
IMPORT = _call("import", ImportReport)
TRACES = _call("traces.list", TracePage)
TRACE = _call("traces.show", ShownTrace)
PLAN = _call("dataset.plan", ConcludedPlan)
BUILD = _call("dataset.build", BuiltDataset)
DATASET = _call("dataset.show", ShownDataset)
RUNS = RemoteCall("run.list", TypeAdapter(list[ListedRun]))
COMPARED_RUNS = _call("run.compare", RunComparison)
METRICS = RemoteCall("runs.metrics", TypeAdapter(list[dict[str, Any]]))
VERSIONS = RemoteCall("models.list", TypeAdapter(list[ListedVersion]))
EVALUATE = _call("evaluate", EvaluationResult)
REPLAY = _call("replay.run", TraceReplay)
SHOWN_REPLAY = _call("replay.show", ShownReplay)
GATE = _call("gate.decide", PolicyDecision)
EXPORT = _call("export", CheckedExport)
DEPLOY = _call("deploy", DeployedVersion)
TRAIN = TypeAdapter(TrainResult)
CALLS: tuple[RemoteCall[Any], ...] = (
    AGENTS,
    IMPORT,
    TRACES,
    TRACE,
    PLAN,
    BUILD,
    DATASET,
    RUNS,
    COMPARED_RUNS,
    METRICS,
    VERSIONS,
    EVALUATE,
    REPLAY,
    SHOWN_REPLAY,
    GATE,
    EXPORT,
    DEPLOY,
)
"""All of them but `train.METHOD`, whose answer is TRAIN."""
DATASET_FILES, EXPORT_FILE = "dataset.export", "exports.file"
"""Operations that answer with files."""
NO_SETTINGS = frozenset({"agent", "base", "dataset", "dry_run", "resume", "wait"})
"""Fields of a training's request that are no settings of its method."""


class RemoteHome:
    """A home that a server has. Requests keep no connection, so there is nothing to close; a
    program runs unchanged with either home."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._client = ServerClient.of_url(url, key, sdk.home())

    def __enter__(self) -> RemoteHome:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing; see the class."""

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._client.url

    @property
    def agents(self) -> list[str]:
        """The names of the agents that the home has, as far as the key may read them."""
        return [agent["name"] for agent in _asked(self._client, AGENTS, {})]

    def agent(self, name: str) -> RemoteAgent:
        """Return the agent with this name. It exists once something of it is stored."""
        return RemoteAgent(self._client, name)


class RemoteAgent:
    """An agent (an app) of a server's home: its feedback, datasets and versions."""

    def __init__(self, client: ServerClient, name: str) -> None:
        self._client, self._name = client, name

    @property
    def name(self) -> str:
        """The name of the agent."""
        return self._name

    def import_(
        self,
        path: str | Path,
        source: str | None = None,
        *,
        gold: bool = False,
        reviewer: str = "owner",
        columns: Sequence[str] = (),
        scales: Sequence[str] = (),
        dry_run: bool = False,
    ) -> ImportReport:
        """Send a file of this machine, import it there, and return a report with counts of its
        lines.

        Args:
            path: The file.
            source: The format; None detects it from the first rows.
            gold: `reviewer` has reviewed the cases in it.
            reviewer: The reviewer's name.
            columns: COLUMN=MEANING of a table, as in the option `--column`.
            scales: The ends of a scale, as in the option `--scale`.
            dry_run: Read and check; store nothing.

        Raises:
            InputError: It is no file, no source can read it, or several can.
        """
        values: dict[str, Any] = {"path": Path(path), "gold": gold, "dry_run": dry_run}
        if gold:
            values["reviewer"] = reviewer
        if columns:
            values["column"] = list(columns)
        if scales:
            values["scale"] = list(scales)
        if source is None and Path(path).is_file():
            source = detected_source(Path(path), columns, scales, gold=gold)
        if source is not None:
            values["source"] = source
        return self._asked(IMPORT, values)

    def traces(self, most: int = 100, **filters: Any) -> list[TraceSummary]:
        """Return the newest traces with the feedback about them; long texts are shortened.

        Args:
            most: The number of traces.
            filters: The options of `thumbwheel traces list`: session, subject, model, version,
                status, since, until, text, rated, judged.

        Raises:
            NotFound: Nothing of the agent is stored.
        """
        require_filters(filters)
        filters = {name: value for name, value in filters.items() if value is not None}
        traces: list[TraceSummary] = []
        cursor: dict[str, str] = {}
        while len(traces) < most:
            limit = min(most - len(traces), TRACES_AT_ONCE)
            page = self._asked(TRACES, {**filters, **cursor, "limit": limit})
            traces += page.traces
            if page.after is None:
                break
            cursor = {"after": page.after}
        return traces

    def trace(self, name: str) -> ShownTrace:
        """Return a trace by its id, or its name in its source: the whole conversation, every step,
        the answer, and the feedback.

        Raises:
            NotFound: There is no such trace.
        """
        return self._asked(TRACE, {"trace": name})

    def plan(self, **settings: Any) -> DataPlan:
        """Return the current data plan; `settings` belong to the section `dataset`.

        Raises:
            NotFound: Nothing of the agent is stored.
        """
        return self._asked(PLAN, {}, settings, DatasetConfig.model_fields)

    def build(
        self, shape: str | None = None, *, method: str = "auto", **settings: Any
    ) -> RemoteDataset:
        """Freeze a dataset and return it. The same feedback and settings give the same one.

        Args:
            shape: The kind of rows: chats, pairs, labels, scored, prompts or groups; None takes
                the one that `method` needs.
            method: The training method; `auto` takes the one that the plan recommends.
            settings: Settings of the section `dataset`.
        """
        values = {"method": method} if shape is None else {"shape": shape}
        record = self._asked(BUILD, values, settings, DatasetConfig.model_fields)
        return RemoteDataset(self._client, record)

    def dataset(self, name: str = "latest") -> RemoteDataset:
        """Return a frozen dataset by its id, or the latest."""
        return RemoteDataset(self._client, self._asked(DATASET, {"name": name, "rows": 0}))

    def train(
        self,
        method: str,
        base: str | Path,
        *,
        dataset: RemoteDataset | str | None = None,
        **settings: Any,
    ) -> RunResult:
        """Train a candidate version and return the result of the run.

        Args:
            method: sft, dpo, kto, reward, grpo, grpo_offline or ppo.
            base: The Hugging Face id of a model, or its name among the `bases` of the server's
                home.
            dataset: The dataset; None builds it from the feedback in force.
            settings: Settings of the method (`thumbwheel train METHOD --help`).

        Raises:
            TrainingError: The run failed; its message names the log.
        """
        call = RemoteCall(f"train.{method}", TRAIN)
        values: dict[str, Any] = {"base": str(base)}
        if dataset is not None:
            values["dataset"] = dataset if isinstance(dataset, str) else dataset.id
        return self._asked(call, values, settings)

    @property
    def runs(self) -> list[ListedRun]:
        """The training runs of the agent, the oldest first, each with its settings, its figures,
        and the version that it gave."""
        return self._asked(RUNS, {})

    def compare_runs(self, *runs: str) -> RunComparison:
        """Compare runs by their ids: what they came to, and the settings that differ.

        Raises:
            InputError: There are too few or too many.
            NotFound: There is no such run; the message lists the existing ones.
        """
        return self._asked(COMPARED_RUNS, {"runs": list(runs)})

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """Return what a run logged: a dict for each step and each evaluation, the first one first.
        `pandas.DataFrame` makes a table of it.

        Raises:
            NotFound: There is no such run; the message lists the existing ones.
        """
        lines: list[dict[str, Any]] = []
        while events := self._asked(METRICS, {"run": run, "after": str(len(lines))}):
            lines += [event["content"] for event in events]
        return lines

    @property
    def versions(self) -> list[ModelVersion]:
        """The model versions of the agent, the first one first."""
        listed = self._asked(VERSIONS, {})
        return list(listed)

    def version(self, name: str = "latest") -> ModelVersion:
        """Return a version by its name (`v3`), an alias, `latest` or an id.

        Raises:
            NotFound: There is no such version; the message lists the existing names.
        """
        listed = self._asked(VERSIONS, {})
        aliases = {alias: version.id for version in listed for alias in version.aliases}
        return version_named(self.name, name, listed, aliases)

    def evaluate(
        self, version: str = "latest", *, against: str | None = None, **settings: Any
    ) -> Evaluation:
        """Compare a version with the live one, or with `against`, on rows that neither was trained
        on.

        `settings` belong to the section `evaluation`. Raises DataError if no row can decide.
        """
        values: dict[str, Any] = {"version": version, "gate": False}
        if against is not None:
            values["against"] = against
        return self._asked(EVALUATE, values, settings, EvaluationConfig.model_fields)

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
        values = {
            "candidate": version,
            "trace": list(traces),
            "most": most,
            "max_new_tokens": max_new_tokens,
        }
        result = self._asked(REPLAY, values)
        result.require_answers()
        return self._asked(SHOWN_REPLAY, {"replay": result.id})

    def gate(self, evaluation: Evaluation) -> PolicyDecision:
        """Return the gate's decision by the agent's declared policy."""
        return self._asked(GATE, {"evaluation": evaluation.id})

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
            to: A new or empty folder of this machine, into which the files are downloaded; None
                leaves them in the server's home.
            quant: The precision of a GGUF file, such as Q8_0.
        """
        if to is not None:
            require_empty(Path(to))
        values = {"version": version, "format": format}
        if quant is not None:
            values["quant"] = quant
        export = self._asked(EXPORT, values)
        if to is None:
            return export
        folder = Path(to)
        folder.mkdir(parents=True, exist_ok=True)
        for file, about in export.files.items():
            self._download(export, file, folder, about["sha256"])
        return replace(export, path=folder)

    def deploy(
        self, version: str = "latest", target: str = "embedded", *, alias: str = "live"
    ) -> DeployedVersion:
        """Deploy a version on a target, and move the alias once a check has passed.

        Raises Conflict if the gate did not permit it.
        """
        return self._asked(DEPLOY, {"version": version, "target": target, "alias": alias})

    def _asked(
        self,
        call: RemoteCall[T],
        values: Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        names: Collection[str] | None = None,
    ) -> T:
        return _asked(self._client, call, {**values, "agent": self.name}, settings or {}, names)

    def _download(self, export: Export, file: str, folder: Path, sha256: str) -> None:
        """Write a file of an export below a folder. Raises InputError if it is not the file that
        the export has."""
        path = folder / file
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"file {file!r} of export {export.id}",
                "its name leads out of the folder",
                "Check that it is your server",
            )
        values = {
            "agent": self.name,
            "version": export.version,
            "export": export.id,
            "file": file,
        }
        operation = _operation(self._client, EXPORT_FILE)
        path.parent.mkdir(parents=True, exist_ok=True)
        content_hash = hashlib.sha256()
        with (
            self._client.answered(operation, operation.encoded(values), "*/*") as response,
            path.open("wb") as stream,
        ):
            while piece := response.read(PIECE):
                content_hash.update(piece)
                stream.write(piece)
        if content_hash.hexdigest() != sha256:
            raise InputError(
                f"file {file!r} of export {export.id}",
                "it arrived with another content than it has there",
                "Export into a new folder again",
            )


class RemoteDataset(HomeDataset):
    """A dataset of a server's home."""

    def __init__(self, client: ServerClient, record: Dataset) -> None:
        super().__init__(record)
        self._client = client

    def rows(self, split: str = "train") -> Iterator[dict[str, Any]]:
        """Yield the rows of a split, one at a time, with all their fields."""
        if split not in SPLITS:
            fix = f"Known: {', '.join(SPLITS)}.{nearest(split, SPLITS)}"
            raise InputError(f"split {split!r}", "there is no such split", fix)
        with tempfile.TemporaryDirectory(prefix="thumbwheel-") as folder:
            files = self._downloaded("jsonl", Path(folder))
            with (files / f"{split}.jsonl").open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)

    def to_hf(self) -> datasets.DatasetDict:
        """Return the splits that have rows as a Hugging Face DatasetDict, in TRL's columns.

        Raises:
            MissingExtra: `datasets` is not installed.
        """
        try:
            import datasets
        except ImportError:
            raise MissingExtra.of("a Hugging Face dataset", "datasets", "train") from None
        with tempfile.TemporaryDirectory(prefix="thumbwheel-") as folder:
            files = self._downloaded("hf", Path(folder))
            loaded = datasets.load_from_disk(str(files), keep_in_memory=True)
        assert isinstance(loaded, datasets.DatasetDict)  # noqa: S101 - the format says so
        return loaded

    def _downloaded(self, format: str, folder: Path) -> Path:
        """Return a folder below `folder` with the files of the dataset in this format."""
        values = {"agent": self.record.agent, "name": self.id, "format": format}
        operation = _operation(self._client, DATASET_FILES)
        with self._client.answered(operation, operation.encoded(values), "*/*") as response:
            unpack(response, folder / "files")
        return folder / "files"


def _operation(client: ServerClient, name: str) -> RemoteOperation:
    operation = client.operation(name)
    if operation is None:
        raise NotFound(
            f"operation {name!r} of server {client.url}",
            "the server does not offer it",
            "Check the names, and that the server has the release of this client",
        )
    return operation


def _asked(
    client: ServerClient,
    call: RemoteCall[T],
    values: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    names: Collection[str] | None = None,
) -> T:
    """Send the request of a call, and return its answer. `names` are the settings that the method
    has, None for a training. Raises ConfigError for a setting that the request does not take."""
    operation = _operation(client, call.operation)
    allowed = operation.names - (NO_SETTINGS if names is None else set(values))
    if names is not None:
        allowed &= set(names)
    for name, value in (settings or {}).items():
        if name not in allowed:
            raise ConfigError(
                f"setting {name!r} of {call.operation}",
                "a request takes no such setting",
                f"Known here: {', '.join(sorted(allowed))}.{nearest(name, allowed)}",
            )
        if value is None and operation.method == "GET":
            raise ConfigError(
                f"setting {name!r} = None of {call.operation}",
                "a query has no way to say it",
                f"Leave it out, or set dataset.{name} in the server's thumbwheel.yaml",
            )
    sent = {**(settings or {}), **values}
    file = file_to_upload(operation, sent)
    with client.answered(operation, operation.encoded(sent), JSON, file) as response:
        content = json_of(response)
    return call.answer.validate_python(content)
