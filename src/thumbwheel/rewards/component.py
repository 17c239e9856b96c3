"""The components of an agent's reward, ready to run: a reward function with its settings, a version
and a time limit.

A component's version is a fingerprint of its function's name and version and of its settings; what
it reads of a case has a fingerprint too. Together they name a row of the ledger. Functions run in
this process; the time limit is enforced on the main thread of a Unix process.
"""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from types import FrameType
from typing import Any, NamedTuple

from thumbwheel.core import ids
from thumbwheel.core.errors import ConfigError, NotFound
from thumbwheel.core.imports import is_importing
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.documents import documents
from thumbwheel.rewards import next_turn
from thumbwheel.rewards.cases import StoredCase
from thumbwheel.rewards.checker import CaseChecker
from thumbwheel.rewards.combine import RewardConfig
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.rewards.presets import CHECKER, ComponentConfig

OF_ANSWERS = frozenset({"text", "reference", "prompt", "tools", "finish", "mates"})
"""A function that reads nothing else has nothing to judge where the answer was not recorded."""
IMPORT_PATIENCE = 0.1
"""Seconds after which a time limit that ended during an import is looked at again."""
SetTimeout = Callable[[float], None]
MODEL_NAME = re.compile(r"(rm)?\d+|latest")
DOCUMENT_NAME = re.compile(r"latest|[0-9a-f]{12,64}")


class DocumentKind(NamedTuple):
    """A kind of document that a setting may name."""

    noun: str
    stored_as: str
    command: str


CLASSIFIER = DocumentKind("classifier", "classifier", "thumbwheel label learn")
CALIBRATION = DocumentKind("calibration", next_turn.KIND, "thumbwheel reward calibrate")


@dataclass(frozen=True)
class Component:
    """A part of the reward, ready to run; `version` names function and settings."""

    name: str
    function: RewardFunction[Any]
    version: str
    timeout: float

    def inputs(self, stored: StoredCase) -> str:
        """Return the fingerprint of everything that the component would read of a case."""
        if not self.judges(stored):
            return "no answer"
        return sha256(
            _ENCODER.encode(self.function.inputs(stored.case)).encode("utf-8", "surrogatepass")
        ).hexdigest()

    def judges(self, stored: StoredCase) -> bool:
        """Return whether the case has anything that the component could judge."""
        return (
            stored.answered
            or "text" not in self.function.reads
            or bool(self.function.reads - OF_ANSWERS)
        )

    def judge(self, due: Sequence[StoredCase]) -> list[Score]:
        """Return one score for each case. If the function raises, takes too long or leaves its
        range, only the scores of that call are failed."""
        cases = [stored.case for stored in due if self.judges(stored)]
        judges_many = type(self.function).score is not RewardFunction.score
        pieces = [cases] if judges_many else [[case] for case in cases]
        scores: list[Score] = []
        with time_limit() as set_timeout:
            for piece in pieces:
                if piece:
                    scores += self._scores(piece, set_timeout)
        missing = Score.none(JudgementStatus.NOT_APPLICABLE, "the answer was not recorded")
        remaining = iter(scores)
        return [next(remaining) if self.judges(stored) else missing for stored in due]

    def _scores(self, cases: Sequence[Case], set_timeout: SetTimeout) -> list[Score]:
        try:
            set_timeout(self.timeout * len(cases))
            try:
                scores = self.function.score(cases)
            finally:
                set_timeout(0)
            if len(scores) != len(cases):
                raise ValueError(f"it gave {len(scores)} scores for {len(cases)} answers")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a component that raises is a recorded failure
            return [Score.none(JudgementStatus.FAILED, f"{type(error).__name__}: {error}")] * len(
                cases
            )
        return [self._inside(score) for score in scores]

    def _inside(self, score: Score) -> Score:
        low, high = self.function.low, self.function.high
        if score.value is None or low <= score.value <= high:
            return score
        return Score.none(
            JudgementStatus.FAILED, f"it gave {score.value:g}; its scores lie in {low:g}..{high:g}"
        )


def components(
    ws: Workspace, agent: str, config: RewardConfig, only: Collection[str] = ()
) -> list[Component]:
    """Return the components of an agent's reward (those named in `only`). Raises NotFound for an
    unknown name, and ConfigError for a component that cannot be created."""
    parts = config.parts()
    for name in only:
        if name not in parts:
            raise NotFound(
                f"component {name!r}",
                f"the reward of {agent!r} has none",
                f"It has: {', '.join(parts)}.{nearest(name, parts)}",
            )
    return [
        _component(ws, agent, config, name, part)
        for name, part in parts.items()
        if not only or name in only
    ]


def resolve_paths(
    ws: Workspace, agent: str, settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the owner's settings of functions, by name, with the names of this home (rm1, latest)
    replaced by paths of the files that they mean.

    Raises NotFound for a model or classifier that is not there.
    """
    return {
        function_name: _located(ws, agent, function_name, function_settings)
        for function_name, function_settings in settings.items()
    }


def _component(
    ws: Workspace, agent: str, config: RewardConfig, name: str, part: ComponentConfig
) -> Component:
    called = part.function or name
    kind: type[RewardFunction[Any]]
    if called == CHECKER:
        if part.settings:
            what = f"settings of component {name!r}: {', '.join(part.settings)}"
            fix = "Set those of the functions that cases name under rewards.checkers"
            raise ConfigError(what, "the checker has none of its own", fix)
        kind = CaseChecker
        settings = {"functions": resolve_paths(ws, agent, config.checkers)}
    else:
        kind = FUNCTIONS.get(called)
        settings = _located(ws, agent, called, part.settings)
    function = kind.create(settings, f"rewards.components.{name}.settings")
    return Component(
        name,
        function,
        ids.fingerprint([called, function.version, function.identity()]),
        part.timeout,
    )


def _located(
    ws: Workspace, agent: str, function_name: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    located = dict(settings)
    if function_name == "reward_model" and MODEL_NAME.fullmatch(str(located.get("model", ""))):
        from thumbwheel.models import reward_models

        located["model"] = str(
            reward_models.folder(ws, reward_models.find(ws, agent, located["model"]))
        )
    if function_name == "learned" and DOCUMENT_NAME.fullmatch(str(located.get("classifier", ""))):
        located["classifier"] = _document(ws, agent, CLASSIFIER, str(located["classifier"]))
    if function_name == "next_turn" and DOCUMENT_NAME.fullmatch(str(located.get("calibration"))):
        located["calibration"] = _document(ws, agent, CALIBRATION, str(located["calibration"]))
    if function_name == "judge" and located.get("agreement"):
        located["home"] = str(ws.home.path)
    return located


def _document(ws: Workspace, agent: str, kind: DocumentKind, name: str) -> str:
    """Return the path of a stored document: the newest for "latest", or the one whose hash begins
    with `name`. Raises NotFound."""
    hashes = [document.sha256 for document in documents(ws, kind.stored_as, agent)]
    chosen = next(
        (document for document in hashes if name == "latest" or document.startswith(name)), None
    )
    if chosen is None:
        fix = (
            f"Make one: {kind.command} --agent {agent}"
            if not hashes
            else f"Known: {', '.join(document[:12] for document in hashes)}"
        )
        raise NotFound(f"{kind.noun} {name!r} of {agent!r}", "there is none of that name", fix)
    return str(Artifacts.of(ws).path(chosen))


@contextmanager
def time_limit() -> Iterator[SetTimeout]:
    """Yield a function that arms a timer: TimeoutError is raised after that many seconds, unless it
    is called again; 0 disarms it. Outside the main thread the timer does nothing."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield lambda seconds: None
        return
    limit = 0.0

    def expire(number: int, frame: FrameType | None) -> None:
        if is_importing(frame):  # it must not be broken off; the next moment will do
            signal.setitimer(signal.ITIMER_REAL, IMPORT_PATIENCE)
            return
        raise TimeoutError(f"no score within {limit:g} s")

    def set_timeout(seconds: float) -> None:
        nonlocal limit
        limit = seconds
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, expire)
    try:
        yield set_timeout
    finally:
        set_timeout(0)
        signal.signal(signal.SIGALRM, before)


def _plain(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, frozenset | set):
        return sorted(value)
    return vars(value) if hasattr(value, "__dict__") else repr(value)


_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=_plain)
