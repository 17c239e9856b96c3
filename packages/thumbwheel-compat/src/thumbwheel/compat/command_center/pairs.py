"""DPO pairs of rated widgets. The import source `widgets` reads entries and ratings, and a dataset
makes the pairs.

A rating that joins no entry and a rater's earlier rating are not used. Raters who contradict each
other evenly make no pair. The split is by question.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from thumbwheel.capture import trace_queries
from thumbwheel.compat.command_center.source import ASKED, SOURCE
from thumbwheel.compat.script_home import open_home
from thumbwheel.compat.training_rows import report_refused
from thumbwheel.core import log
from thumbwheel.core.errors import DataError, InputError, MissingExtra
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.source import Line
from thumbwheel.importers.types import TraceRecord

if TYPE_CHECKING:
    from datasets import DatasetDict

AGENT = "widgets"
DATA, RATINGS, CATALOGUE = "exhaustive_data.json", "ratings.json", "catalog.json"
FIXTURE = "default-render"
"""Of an entry that names none: a scenario with one fixture."""
MAX_PAIRS = 5
META = "pipeline_meta"
"""Key of what the pipeline understood of a question."""
VALIDATION = 0.1
WIDGET, FIXTURES = "widget_selection", "fixture_selection"
PairType = Literal["widget", "fixture", "both"]
KINDS: Mapping[PairType, tuple[str, ...]] = {
    "widget": (WIDGET,),
    "fixture": (FIXTURES,),
    "both": (WIDGET, FIXTURES),
}


@dataclass
class DPOPair:
    """A question with the better and the worse answer. `split` is train or validation."""

    prompt: str
    chosen: str
    rejected: str
    question_id: str
    scenario: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    split: str = "train"


def build_widget_dpo_pairs(
    entries: Iterable[Mapping[str, Any]],
    all_scenarios: Sequence[str],
    max_pairs_per_question: int | None = None,
) -> list[DPOPair]:
    """Build pairs of widgets for each question, with answers such as `kpi (normal)`.

    For a question with several liked or disliked widgets, all liked ones over all disliked ones
    come first. Forced entries are left out, as nobody chose their widget.
    """
    catalogue: dict[str, Any] = {scenario: {} for scenario in all_scenarios}
    return _pairs_from_entries(entries, catalogue, "widget", max_pairs_per_question or MAX_PAIRS)


def build_fixture_dpo_pairs(
    entries: Iterable[Mapping[str, Any]],
    fixture_descriptions: Mapping[str, Mapping[str, str] | str],
    max_pairs_per_question: int | None = None,
) -> list[DPOPair]:
    """Build pairs of fixtures for the same question, scenario, size and data."""
    return _pairs_from_entries(
        entries, fixture_descriptions, "fixture", max_pairs_per_question or MAX_PAIRS
    )


def build_combined_dpo_pairs(
    entries: Iterable[Mapping[str, Any]],
    all_scenarios: Sequence[str],
    fixture_descriptions: Mapping[str, Mapping[str, str] | str],
    max_pairs_per_question: int | None = None,
) -> list[DPOPair]:
    """Build the pairs of widgets, then those of fixtures."""
    rows = list(entries)
    widgets = build_widget_dpo_pairs(rows, all_scenarios, max_pairs_per_question)
    return widgets + build_fixture_dpo_pairs(rows, fixture_descriptions, max_pairs_per_question)


def load_entries_from_file(data_path: str | Path) -> list[dict[str, Any]]:
    """Return the entries of an exhaustive_data.json. Raises InputError."""
    content = _json_object(Path(data_path))
    return list(content.get("entries", ()))


def load_ratings_from_file(ratings_path: str | Path) -> dict[str, Any]:
    """Return entry_id -> rating of a ratings.json, exported or bare. Raises InputError."""
    content = _json_object(Path(ratings_path))
    return dict(content.get("ratings", content))


def pairs_to_hf_dataset(pairs: Iterable[DPOPair], val_split: float | None = None) -> Any:
    """Return pairs as a Hugging Face DatasetDict: train, and validation with about `val_split` of
    the questions (None: the share of TRAINING_DATA_CONFIG). With 0 it is one Dataset."""
    from thumbwheel.datasets.split import share_of

    val_split = VALIDATION if val_split is None else val_split

    try:
        from datasets import Dataset, DatasetDict
    except ImportError:
        raise MissingExtra.of("a Hugging Face dataset", "datasets", "train") from None
    split_pairs = []
    for pair in pairs:
        held_out = share_of(AGENT, pair.question_id) < val_split
        split_pairs.append(replace(pair, split="validation" if held_out else "train"))
    rows = rows_by_split(split_pairs)
    if not val_split:
        return Dataset.from_list(rows["train"])
    dataset = DatasetDict()
    for split, split_rows in rows.items():
        if split_rows:
            dataset[split] = Dataset.from_list(split_rows)
    return dataset


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"file {str(path)!r}", str(error), "Name a JSON file") from None
    if not isinstance(content, dict):
        raise InputError(f"file {str(path)!r}", "it is not a JSON object", "Name another file")
    return content


def prepare_training_dataset(
    source: Literal["db", "file"] = "db",
    data_path: str | Path | None = None,
    ratings_path: str | Path | None = None,
    pair_type: PairType = "both",
    min_samples: int = 50,
    val_split: float | None = None,
    *,
    agent: str = AGENT,
    home: str | Path | None = None,
) -> DatasetDict:
    """Return the pairs as a Hugging Face DatasetDict: train, and validation with about `val_split`
    of the questions (None: the share of TRAINING_DATA_CONFIG).

    `db` reads what was imported for `agent` into the home; `file` reads exhaustive_data.json and
    ratings.json. Raises DataError for fewer than `min_samples` pairs.
    """
    try:
        from datasets import Dataset, DatasetDict
    except ImportError:
        raise MissingExtra.of("a Hugging Face dataset", "datasets", "train") from None
    val_split = VALIDATION if val_split is None else val_split
    if source == "db":
        pairs = _stored_pairs(agent, home, pair_type, val_split)
    elif data_path is None or ratings_path is None:
        raise InputError(
            "prepare_training_dataset",
            "a file source needs data_path and ratings_path",
            "Name both files",
        )
    else:
        pairs = build_dataset_from_files(data_path, ratings_path, pair_type, val_split)
    if len(pairs) < min_samples:
        raise DataError(
            f"{len(pairs)} pairs",
            f"at least {min_samples} are asked for",
            "Collect more ratings, or lower min_samples",
        )
    dataset = DatasetDict()
    for split, rows in rows_by_split(pairs).items():
        if rows:
            dataset[split] = Dataset.from_list(rows)
    return dataset


def build_dataset_from_db(
    min_samples: int = 50,
    pair_type: PairType = "both",
    *,
    agent: str = AGENT,
    home: str | Path | None = None,
) -> list[DPOPair]:
    """Return the pairs of what was imported for `agent` into the home; none where there are fewer
    than `min_samples`."""
    pairs = _stored_pairs(agent, home, pair_type, VALIDATION)
    if len(pairs) < min_samples:
        log.say(f"{len(pairs)} pairs, and at least {min_samples} are asked for: none is used")
        return []
    return pairs


def build_dataset_from_files(
    data_path: str | Path,
    ratings_path: str | Path,
    pair_type: PairType = "both",
    val_split: float = VALIDATION,
) -> list[DPOPair]:
    """Return the pairs of one run and its ratings. Raises InputError if a file cannot be read."""
    with _temporary_folder() as folder:
        for path, name in ((data_path, DATA), (ratings_path, RATINGS)):
            try:
                shutil.copyfile(path, folder / name)
            except OSError as error:
                why = error.strerror or str(error)
                raise InputError(f"file {str(path)!r}", why, "Check the path") from None
        return _pairs_from_folder(folder, pair_type, val_split, MAX_PAIRS)


def _stored_pairs(
    agent: str, home: str | Path | None, pair_type: PairType, val_split: float
) -> list[DPOPair]:
    with open_home(home) as ws:
        return list(_pairs(ws, agent, {}, pair_type, val_split))


def pairs_of_entries(
    entries: Iterable[Mapping[str, Any]],
    val_split: float = VALIDATION,
) -> list[DPOPair]:
    """Return the pairs of entries that contain their own ratings."""
    with _temporary_folder() as folder:
        _write(folder / DATA, {"entries": _complete_entries(entries)})
        return _pairs_from_folder(folder, "both", val_split, MAX_PAIRS)


def rows_by_split(pairs: Iterable[DPOPair]) -> dict[str, list[dict[str, str]]]:
    """Return train and validation -> rows of prompt, chosen, rejected and question_id."""
    rows: dict[str, list[dict[str, str]]] = {"train": [], "validation": []}
    for pair in pairs:
        row = {
            "prompt": pair.prompt,
            "chosen": pair.chosen,
            "rejected": pair.rejected,
            "question_id": pair.question_id,
        }
        rows[pair.split].append(row)
    return rows


def _pairs_from_entries(
    entries: Iterable[Mapping[str, Any]],
    catalogue: Mapping[str, Any],
    pair_type: PairType,
    most: int,
) -> list[DPOPair]:
    with _temporary_folder() as folder:
        _write(folder / DATA, {"entries": _complete_entries(entries)})
        _write(folder / CATALOGUE, dict(catalogue))
        return _pairs_from_folder(folder, pair_type, 0, most)


def _complete_entries(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of the caller's entries, completed with the keys that a file always has.

    The pipeline's metadata of a question is part of its prompt, so an entry without metadata gets
    that of another entry of the question.
    """
    rows = []
    understood: dict[Any, Any] = {}
    for number, entry in enumerate(entries, 1):
        row = {key: value for key, value in entry.items() if value is not None}
        row.setdefault("entry_id", f"e{number:05}")
        row.setdefault("fixture", FIXTURE)
        if "natural" not in row:
            row["natural"] = not row.get("forced")
        if META in row:
            understood.setdefault(row.get("question_id"), row[META])
        rows.append(row)
    for row in rows:
        if META not in row and row.get("question_id") in understood:
            row[META] = understood[row["question_id"]]
    return rows


def _pairs_from_folder(
    folder: Path, pair_type: PairType, val_split: float, most: int
) -> list[DPOPair]:
    """Return the pairs of the run in `folder`, by way of a temporary home."""
    from thumbwheel.capture.ingest import ingest

    about: dict[str, Mapping[str, Any]] = {}
    for item in SOURCE.read(folder, lambda position: None):
        for record in item.records if isinstance(item, Line) else ():
            if isinstance(record, TraceRecord):
                about.setdefault(str(record.input[-1]["content"]), record.metadata or {})
    if not about:
        return []
    with open_home(folder / "home") as ws:
        report_refused(ingest(ws, AGENT, "widgets", folder))
        return list(_pairs(ws, AGENT, about, pair_type, val_split, most))


def _pairs(
    ws: Workspace,
    agent: str,
    about: Mapping[str, Mapping[str, Any]],
    pair_type: PairType,
    val_split: float,
    most: int = MAX_PAIRS,
) -> Iterator[DPOPair]:
    """Return the pairs of an agent. `about` is prompt -> metadata of an entry, which says of which
    question and scenario a pair is; what is missing there is looked up in the store."""
    from thumbwheel.datasets.evidence import read_evidence
    from thumbwheel.datasets.shapes.pairs import Pairs
    from thumbwheel.datasets.types import DatasetConfig, Drop, Tally
    from thumbwheel.models.versions import require_agent

    if pair_type not in KINDS:
        choices = f"Known: {', '.join(KINDS)}"
        raise InputError(f"pair_type {pair_type!r}", "there is no such type", choices)
    learner = require_agent(ws, agent)
    config = DatasetConfig(dev=val_split, gate=0, siblings=most)
    with ws.db.read() as connection:
        rows = []
        for evidence in read_evidence(connection, learner, config, Tally()):
            candidates = Pairs().rows(evidence, config)
            rows += [row for row in candidates if not isinstance(row, Drop)]
        for row in rows:
            prompt = str(row.prompt[-1]["content"])
            kind = WIDGET if prompt.endswith(ASKED) else FIXTURES
            if kind not in KINDS[pair_type]:
                continue
            entry = about.get(prompt)
            if entry is None:
                (trace,) = trace_queries.named_traces(connection, learner.id, row.trace_ids[0])
                entry = trace["metadata"] or {}
            metadata: dict[str, Any] = {"type": kind}
            if kind == WIDGET:
                metadata |= {
                    "num_liked": row.chosen.count(", ") + 1,
                    "num_disliked": row.rejected.count(", ") + 1,
                }
            yield DPOPair(
                prompt=prompt,
                chosen=row.chosen,
                rejected=row.rejected,
                question_id=str(entry.get("question_id") or row.group),
                scenario=entry.get("scenario") if kind == FIXTURES else None,
                metadata=metadata,
                split="train" if row.split == "train" else "validation",
            )


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="widgets-") as folder:
        yield Path(folder)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
