"""`learned`: how likely people would call this run good, by a classifier that was fitted on the
labels that people gave.

The classifier is a document that `thumbwheel label learn` writes; it names its labels and its
cross-validated accuracy, which is part of the evidence. It sees numbers about the run, hashed words
of the answer and, where it was asked to, an embedding of it, so that it finds what differs between
good and bad in those labels and no more: a reward to rank and to route by, not one to optimise
against alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.config import Config
from thumbwheel.core.errors import InputError, MissingExtra, ModelError
from thumbwheel.rewards.classifier import Classifier
from thumbwheel.rewards.features import READS, features
from thumbwheel.rewards.function import BatchRewardFunction, Case, JudgementStatus, Score

if TYPE_CHECKING:
    from thumbwheel.engine.embed import Embedder


class LearnedConfig(Config):
    """Settings of `learned`."""

    classifier: str
    """The file that `thumbwheel label learn --out FILE` wrote; in the ledger also latest or its
    hash, of the same agent."""


class Learned(BatchRewardFunction[LearnedConfig]):
    Config = LearnedConfig
    reads = READS

    def __init__(self, config: LearnedConfig) -> None:
        super().__init__(config)
        self._known: tuple[str, Classifier, Embedder | None] | None = None

    def identity(self) -> Any:
        """Return the hash of the file's content, wherever the file lies, or None if it cannot be
        read."""
        try:
            return hashlib.sha256(Path(self.config.classifier).read_bytes()).hexdigest()
        except OSError:
            return None

    def judge_all(self, cases: Sequence[Case]) -> list[Score]:
        try:
            name, classifier, embedder = self._known = self._known or self._load()
        except (InputError, ModelError, MissingExtra) as error:
            return [Score.none(JudgementStatus.BLOCKED, str(error)) for _ in cases]
        report = classifier.about.get("report", {})
        evidence = {
            "classifier": name[:12],
            "labels": report.get("labels"),
            "accuracy": report.get("accuracy"),
        }
        # one by one, so that a score does not depend on the company in which it is computed
        return [
            Score(float(classifier.chances([features(case, embedder)])[0]), evidence=evidence)
            for case in cases
        ]

    def _load(self) -> tuple[str, Classifier, Embedder | None]:
        path = self.config.classifier
        try:
            content = Path(path).read_bytes()
            document = json.loads(content)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is no JSON"
            raise InputError(
                f"classifier {path!r}",
                why,
                "Write one: thumbwheel label learn --agent AGENT --out FILE",
            ) from None
        classifier = Classifier.of(document)
        return hashlib.sha256(content).hexdigest(), classifier, self._embedder(classifier)

    def _embedder(self, classifier: Classifier) -> Embedder | None:
        """Return the model whose embeddings the classifier was fitted on, or None if it was fitted
        without. Raises InputError if its weights have changed."""
        named = classifier.about.get("embeddings")
        if named is None:
            return None
        from thumbwheel.engine.embed import Embedder

        # the file may be somebody else's, and it names what is read: never download
        embedder = Embedder(str(named["model"]), local_only=True)
        if embedder.fingerprint != named["fingerprint"]:
            why = f"it was fitted on embeddings of {embedder.name!r}, whose weights have changed"
            raise InputError(
                f"classifier {self.config.classifier!r}",
                why,
                "Fit it again: thumbwheel label learn",
            )
        return embedder
