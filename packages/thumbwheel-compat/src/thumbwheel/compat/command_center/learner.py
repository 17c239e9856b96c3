"""`OnlineLearner`: ratings as they come in a script, and a DPO run when there are enough new ones.

Ratings are lines of a file that only grows. A run learns from all of them, and
`online_learner.json` says how many of them the last successful run had. A rating joins its entry by
`entry_id`: in the exhaustive_data.json that `data_path` names, else among the entries that were
imported into the home (of several runs the newest), or the rating brings question_id, scenario,
fixture and query itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any

from thumbwheel.compat.command_center.config import ONLINE_LEARNING_CONFIG
from thumbwheel.compat.command_center.exporting import export_to_ollama
from thumbwheel.compat.command_center.pairs import (
    DPOPair,
    build_dataset_from_files,
    pairs_of_entries,
    rows_by_split,
)
from thumbwheel.compat.command_center.training import (
    OUTPUT,
    CommandCenterDPOTrainer,
    TrainingResult,
)
from thumbwheel.compat.exporting import ExportResult
from thumbwheel.compat.jsonl_file import append, read
from thumbwheel.compat.script_home import open_home, with_home
from thumbwheel.core import log
from thumbwheel.core.config import Home
from thumbwheel.core.errors import InputError, ThumbwheelError

SAMPLES, STATE = "feedback_buffer.jsonl", "online_learner.json"
OLD_BUFFER = "feedback_buffer.json"
"""The file of the original: ratings that wait, and the time of its last training."""
OF_ENTRY = ("question_id", "scenario", "fixture", "size", "query")
"""Keys of a rating that its entry has too."""
OPTIONAL_KEYS = (*OF_ENTRY, "device_id", "run_id")


@dataclass(frozen=True)
class LearnerState:
    """The last successful run: how many ratings it learned from, its number, and when it ended."""

    learned: int = 0
    train_count: int = 0
    last_train_time: str | None = None


@dataclass(frozen=True)
class FeedbackSample:
    """A rating as it waits for the next run; what is unknown of its entry is None."""

    entry_id: str
    rating: str
    tags: list[str]
    notes: str
    timestamp: str
    question_id: str | None = None
    scenario: str | None = None
    fixture: str | None = None
    size: str | None = None
    query: str | None = None


class OnlineLearner:
    """Collects ratings below `checkpoint_dir` and trains on them. One run at a time.

    `max_buffer_size` bounds what `feedback_buffer` shows; the file keeps every rating.
    """

    def __init__(
        self,
        min_samples: int = ONLINE_LEARNING_CONFIG["min_samples_to_retrain"],
        max_buffer_size: int = ONLINE_LEARNING_CONFIG["max_buffer_size"],
        retrain_interval_hours: float = ONLINE_LEARNING_CONFIG["retrain_interval_hours"],
        checkpoint_dir: str | Path = OUTPUT,
        auto_export: bool = ONLINE_LEARNING_CONFIG["auto_export"],
        auto_deploy: bool = ONLINE_LEARNING_CONFIG["auto_deploy"],
        on_retrain_complete: Callable[[TrainingResult], None] | None = None,
        *,
        data_path: str | Path | None = None,
        home: str | Path | None = None,
        trainer: CommandCenterDPOTrainer | None = None,
    ) -> None:
        self.min_samples = min_samples
        self.max_buffer_size = max_buffer_size
        self.retrain_interval = timedelta(hours=retrain_interval_hours)
        self.checkpoint_dir = Path(checkpoint_dir)
        self.auto_export = auto_export
        self.auto_deploy = auto_deploy
        self.on_retrain_complete = on_retrain_complete
        self.data_path = Path(data_path) if data_path else None
        self.home = Path(home) if home else None
        self.trainer = trainer or CommandCenterDPOTrainer()
        self.last_result: TrainingResult | None = None
        self.last_export: ExportResult | None = None
        self._run = Lock()
        self._counting = Lock()
        self._thread: Thread | None = None
        self._take_over()
        self._count = len(self._samples())

    def _take_over(self) -> None:
        """Take the ratings that wait in the buffer of the original, unless this was done before.
        Raises InputError for a file that is not such a buffer."""
        path = self.checkpoint_dir / OLD_BUFFER
        if not path.exists() or (self.checkpoint_dir / SAMPLES).exists():
            return
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            # a rating of null is no opinion
            rated = [sample for sample in content["samples"] if sample.get("rating") is not None]
            samples = [_checked(sample) for sample in rated]
            last = content.get("last_train_time")
            trained_at = datetime.fromisoformat(last) if last else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError) as error:
            raise InputError(
                f"file {str(path)!r}",
                f"not a buffer of ratings ({type(error).__name__}: {error})",
                "Correct it, or move it away",
            ) from None
        for sample in samples:
            append(self.checkpoint_dir / SAMPLES, sample)
        if trained_at is not None:
            # a time without a zone is the machine's
            utc_time = trained_at.astimezone(UTC).isoformat()
            self._write_state(replace(self._state(), last_train_time=utc_time))
        log.say(f"{len(samples)} ratings of {path} wait for the next run")

    @property
    def is_training(self) -> bool:
        """Whether a run is going on in this process."""
        return self._run.locked()

    def add_feedback(self, feedback: Mapping[str, Any]) -> bool:
        """Store a rating: entry_id, rating (up or down), and tags, notes, device_id where they are
        known. Returns `should_retrain`.
        """
        append(self.checkpoint_dir / SAMPLES, _checked(feedback))
        with self._counting:
            self._count += 1
        return self.should_retrain()

    @property
    def feedback_buffer(self) -> list[FeedbackSample]:
        """The newest `max_buffer_size` ratings that no run has learned from, the oldest first."""
        waiting = self._samples()[self._state().learned :]
        return [_feedback_sample(sample) for sample in waiting[-self.max_buffer_size :]]

    def force_save(self) -> None:
        """Do nothing: a rating is on disk when `add_feedback` returns."""

    def clear_buffer(self) -> None:
        """Wait for new ratings before the next run. The file keeps all of them, and the next run
        learns from all."""
        self._write_state(replace(self._state(), learned=len(self._samples())))

    def should_retrain(self) -> bool:
        """Return whether `min_samples` new ratings have arrived since the last run; within the
        interval after a run, twice as many are needed. During a training it is False."""
        if self.is_training:
            return False
        state = self._state()
        new = self._count - state.learned
        if state.last_train_time is None:
            return new >= self.min_samples
        elapsed = datetime.now(UTC) - datetime.fromisoformat(state.last_train_time)
        recent = elapsed < self.retrain_interval
        return new >= self.min_samples * (2 if recent else 1)

    def get_status(self) -> dict[str, Any]:
        """Return buffer_size (ratings that no run has learned from), min_samples, is_training,
        last_train_time, train_count and the settings."""
        state = self._state()
        return {
            "buffer_size": self._count - state.learned,
            "min_samples": self.min_samples,
            "is_training": self.is_training,
            "last_train_time": state.last_train_time,
            "train_count": state.train_count,
            "should_retrain": self.should_retrain(),
            "auto_export": self.auto_export,
            "auto_deploy": self.auto_deploy,
        }

    def trigger_retrain(self, async_mode: bool = True) -> bool:
        """Train now, in a thread; return whether the run started. Without `async_mode`, wait for
        the end and return whether it succeeded.

        Returns False if a run is going on already. The result is in `last_result` and
        `last_export`.
        """
        if not self._run.acquire(blocking=False):
            return False
        if not async_mode:
            return self._train()
        self._thread = Thread(target=self._train, name="online-learner")
        self._thread.start()
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Return when the run in the thread has ended."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _train(self) -> bool:
        try:
            samples = self._samples()
            state = self._state()
            rows = rows_by_split(self._pairs(samples))
            folder = self.checkpoint_dir / f"run-{state.train_count + 1}"
            result = self.trainer.train(rows["train"], rows["validation"], folder)
            self.last_result = result
            if not result.success:
                log.say(f"the run failed, and its ratings stay: {result.error_message}")
                return False
            now = datetime.now(UTC).isoformat()
            self._write_state(LearnerState(len(samples), state.train_count + 1, now))
            if self.auto_export and result.checkpoint_path:
                checkpoint = result.checkpoint_path
                self.last_export = export_to_ollama(checkpoint, register=self.auto_deploy)
                if not self.last_export.success:
                    log.say(f"the export failed: {self.last_export.error_message}")
            if self.on_retrain_complete:
                self.on_retrain_complete(result)
            return True
        except ThumbwheelError as error:
            self.last_result = TrainingResult(False, error_message=str(error))
            log.say(f"the run failed, and its ratings stay: {error}")
            return False
        finally:
            self._run.release()

    def _pairs(self, samples: list[dict[str, Any]]) -> list[DPOPair]:
        if self.data_path is not None:
            with TemporaryDirectory() as folder:
                ratings = Path(folder) / "ratings.json"
                rows = []
                for sample in samples:
                    row = {key: value for key, value in sample.items() if key not in OF_ENTRY}
                    rows.append(row)
                ratings.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
                return build_dataset_from_files(self.data_path, ratings)
        missing = [sample for sample in samples if not _says_what_it_is_about(sample)]
        stored = self._entries_of_home(missing) if missing else {}
        entries = []
        for sample in samples:
            entry = {} if _says_what_it_is_about(sample) else stored.get(sample["entry_id"])
            if entry is not None:
                entries.append({"question": sample.get("query")} | sample | entry)
        if len(entries) < len(samples):
            count = len(samples) - len(entries)
            why = (
                "no imported run has their entries. Import it (thumbwheel import widgets FOLDER "
                "--agent AGENT), or give data_path"
            )
            log.say(f"{count} ratings are left out: {with_home(why, self.home)}")
        return pairs_of_entries(entries)

    def _entries_of_home(self, samples: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the imported entries that these ratings are about, by their ids."""
        from thumbwheel.compat.command_center.stored_entries import stored_entries

        if not Home.at(self.home).database.exists():
            return {}
        with open_home(self.home) as ws:
            return stored_entries(ws, samples)

    def _samples(self) -> list[dict[str, Any]]:
        samples, skipped = read(self.checkpoint_dir / SAMPLES)
        if skipped:
            log.say(f"{skipped} lines of {SAMPLES} are skipped, as they are no JSON objects")
        return samples

    def _state(self) -> LearnerState:
        path = self.checkpoint_dir / STATE
        if not path.exists():
            return LearnerState()
        return LearnerState(**json.loads(path.read_text(encoding="utf-8")))

    def _write_state(self, state: LearnerState) -> None:
        path = self.checkpoint_dir / STATE
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")
        beside.replace(path)


def _checked(feedback: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rating as a line of the file. Raises InputError for one without an entry, or without
    up or down."""
    entry_id, rating = feedback.get("entry_id"), feedback.get("rating")
    if not isinstance(entry_id, str) or not entry_id or rating not in ("up", "down"):
        why = f"entry_id {entry_id!r} with rating {rating!r}"
        raise InputError("feedback", why, "Give the entry_id, and up or down")
    sample = {key: feedback[key] for key in OPTIONAL_KEYS if feedback.get(key) is not None}
    sample |= {
        "entry_id": entry_id,
        "rating": rating,
        "tags": list(feedback.get("tags") or ()),
        "notes": feedback.get("notes") or "",
    }
    rated_at = feedback.get("rated_at") or feedback.get("timestamp")
    sample["rated_at"] = rated_at or datetime.now(UTC).isoformat()
    return sample


def _feedback_sample(sample: Mapping[str, Any]) -> FeedbackSample:
    of_entry = {key: sample.get(key) for key in OF_ENTRY}
    return FeedbackSample(
        sample["entry_id"],
        sample["rating"],
        sample["tags"],
        sample["notes"],
        sample["rated_at"],
        **of_entry,
    )


def _says_what_it_is_about(sample: Mapping[str, Any]) -> bool:
    return bool(sample.get("question_id") and sample.get("scenario"))


_learners: list[OnlineLearner] = []
"""The process's learner, where there is one."""


def init_online_learner(**settings: Any) -> OnlineLearner:
    """Make the learner of this process; `settings` are those of `OnlineLearner`."""
    _learners[:] = [OnlineLearner(**settings)]
    return _learners[0]


def shutdown_online_learner() -> None:
    """Forget the learner of this process, once a run that goes on has ended."""
    for learner in _learners:
        learner.wait()
    _learners.clear()


def get_online_learner() -> OnlineLearner:
    """Return the learner of this process; create one with the defaults if there is none."""
    return _learners[0] if _learners else init_online_learner()
