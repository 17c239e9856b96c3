"""A calibrated logistic regression on features of traces: fitted by L-BFGS, stored as one JSON
document that names its settings and labels.

The objective is the log loss plus |w|^2 / (2 * strength) over standardised numbers, hashed words
and embeddings; the intercept is free. Margins become chances by Platt's sigmoid, fitted on margins
of answers that the regression had not seen (Platt 1999, with his smoothed targets). Both objectives
are convex and start from zero, so the same labels give the same document.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thumbwheel.core.errors import InputError
from thumbwheel.rewards.features import NUMBERS, WORDS, Features

Array = NDArray[np.float64]
KIND = "thumbwheel trace classifier 2"
SPARSE = len(NUMBERS) + WORDS
"""Weights before those of the embedding."""
DIGITS = 12
"""Significant digits that are kept; the last ones depend on the machine."""


@dataclass(frozen=True)
class Regression:
    """Weights over standardised numbers, hashed words and embedding, in this order; the margin is
    above 0 where good is likelier."""

    mean: Array
    scale: Array
    weights: Array
    intercept: float

    def margins(self, rows: Sequence[Features]) -> Array:
        """Return the margin of each row, [n]."""
        return np.asarray(design(rows, self.mean, self.scale) @ self.weights + self.intercept)


@dataclass(frozen=True)
class Classifier:
    """A regression with its calibration, and the document that says what it was made of."""

    regression: Regression
    calibration: tuple[float, float]
    about: Mapping[str, Any]

    def chances(self, rows: Sequence[Features]) -> Array:
        """Return the probability that each row is good, from 0 to 1, [n]."""
        return calibrated(self.regression.margins(rows), self.calibration) if rows else np.zeros(0)

    def document(self) -> dict[str, Any]:
        """Return the classifier as a JSON document; `of` reads it back."""
        regression = self.regression
        words = regression.weights[len(NUMBERS) : SPARSE]
        weights = {
            "numbers": _shortened(regression.weights[: len(NUMBERS)]),
            "intercept": _short(regression.intercept),
            "words": {str(column): _short(value) for column, value in enumerate(words) if value},
            "meaning": _shortened(regression.weights[SPARSE:]),
        }
        return {
            "kind": KIND,
            "features": list(NUMBERS),
            "mean": _shortened(regression.mean),
            "scale": _shortened(regression.scale),
            "weights": weights,
            "calibration": _shortened(self.calibration),
            **self.about,
        }

    @classmethod
    def of(cls, document: Any) -> Classifier:
        """Read a classifier from its document. Raises InputError for anything else, and for one
        with other features."""
        try:
            if document["kind"] != KIND or document["features"] != list(NUMBERS):
                raise ValueError("it was made by another version, for other features")
            weights = np.append(np.zeros(SPARSE), document["weights"]["meaning"])
            weights[: len(NUMBERS)] = document["weights"]["numbers"]
            for index, value in document["weights"]["words"].items():
                weights[len(NUMBERS) + int(index)] = value
            mean, scale = (np.array(document[name], dtype=float) for name in ("mean", "scale"))
            first, second = document["calibration"]
            regression = Regression(mean, scale, weights, float(document["weights"]["intercept"]))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InputError(
                "classifier",
                f"it cannot be parsed ({error})",
                "Fit it again: thumbwheel label suggest",
            ) from None
        names = ("kind", "features", "mean", "scale", "weights", "calibration")
        return cls(
            regression,
            (float(first), float(second)),
            {key: value for key, value in document.items() if key not in names},
        )


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _shortened(values: Iterable[float]) -> list[float]:
    return [_short(value) for value in values]


def design(rows: Sequence[Features], mean: Array, scale: Array) -> Any:
    """Return the sparse matrix [n, numbers + words + meaning]."""
    from scipy.sparse import csr_array, hstack

    numbers = csr_array((np.array([row.numbers for row in rows]) - mean) / scale)

    # hashed words in compressed sparse rows
    starts = np.cumsum([0, *(len(row.words) for row in rows)])
    columns = np.fromiter(chain.from_iterable(row.words for row in rows), np.int64, starts[-1])
    weights = chain.from_iterable(row.words.values() for row in rows)
    values = np.fromiter(weights, float, starts[-1])
    words = csr_array((values, columns, starts), shape=(len(rows), WORDS))

    parts = [numbers, words]
    meaning = np.array([row.meaning for row in rows])
    if meaning.size:
        parts.append(csr_array(meaning))
    return hstack(parts, format="csr")


def fit(rows: Sequence[Features], good: Array, strength: float) -> Regression:
    """Fit the regression to these labels (1 good, 0 bad)."""
    from scipy.optimize import minimize

    numbers = np.array([row.numbers for row in rows])
    mean, spread = numbers.mean(0), numbers.std(0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    matrix = design(rows, mean, scale)
    signs = 2 * good - 1

    def loss(point: Array) -> tuple[float, Array]:
        margins = signs * (matrix @ point[:-1] + point[-1])
        pull = -signs * _sigmoid(-margins)
        gradient = np.append(matrix.T @ pull + point[:-1] / strength, pull.sum())
        return float(
            np.logaddexp(0, -margins).sum() + point[:-1] @ point[:-1] / (2 * strength)
        ), gradient

    result = minimize(
        loss, np.zeros(matrix.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 500}
    )
    return Regression(mean, scale, result.x[:-1], float(result.x[-1]))


def calibrate(margins: Array, good: Array) -> tuple[float, float]:
    """Fit slope and intercept of Platt's sigmoid to these margins."""
    from scipy.optimize import minimize

    for_, against = float(good.sum()), float(len(good) - good.sum())
    targets = np.where(good > 0, (for_ + 1) / (for_ + 2), 1 / (against + 2))

    def loss(point: Array) -> tuple[float, Array]:
        chances = point[0] * margins + point[1]
        value = np.logaddexp(0, chances) - targets * chances
        wrong = _sigmoid(chances) - targets
        return float(value.sum()), np.array([(wrong * margins).sum(), wrong.sum()])

    bounds = [
        (0.0, None),
        (None, None),
    ]  # a margin that points the wrong way says nothing; it must not be turned round
    result = minimize(
        loss,
        np.array([1.0, math.log((for_ + 1) / (against + 1))]),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
    )
    return float(result.x[0]), float(result.x[1])


def calibrated(margins: Array, calibration: tuple[float, float]) -> Array:
    """Return probabilities of being good, [n]."""
    return _sigmoid(calibration[0] * margins + calibration[1])


def _sigmoid(values: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(values / 2)))
