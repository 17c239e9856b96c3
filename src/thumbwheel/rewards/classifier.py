"""A logistic regression on features of traces, calibrated: fitted by L-BFGS, kept as one JSON
document that names all it was made of.

The objective is the log loss plus |w|^2 / (2 * strength) over standardised numbers, hashed words
and embeddings; the intercept is free. Margins become chances by Platt's sigmoid, fitted on margins
of answers that the regression had not seen (Platt 1999, with his smoothed targets). All of it is
convex and starts from zero, so the same labels give the same document.

Not here: which labels, folds and figures (`learn`), what the features are (`features`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        """One for each [n]."""
        return np.asarray(design(rows, self.mean, self.scale) @ self.weights + self.intercept)


@dataclass(frozen=True)
class Classifier:
    """A regression with its calibration, and the document that says what it was made of."""

    regression: Regression
    calibration: tuple[float, float]
    about: Mapping[str, Any]

    def chances(self, rows: Sequence[Features]) -> Array:
        """How likely each is good, from 0 to 1 [n]."""
        return calibrated(self.regression.margins(rows), self.calibration) if rows else np.zeros(0)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        regression = self.regression
        numbers = {
            name: [_short(value) for value in part]
            for name, part in (("mean", regression.mean), ("scale", regression.scale))
        }
        weights = {
            "numbers": [_short(value) for value in regression.weights[: len(NUMBERS)]],
            "intercept": _short(regression.intercept),
        }
        words = {
            str(index): _short(value)
            for index, value in enumerate(regression.weights[len(NUMBERS) : SPARSE])
            if value
        }
        meaning = [_short(value) for value in regression.weights[SPARSE:]]
        return {
            "kind": KIND,
            "features": list(NUMBERS),
            **numbers,
            "weights": weights | {"words": words, "meaning": meaning},
            "calibration": [_short(value) for value in self.calibration],
            **self.about,
        }

    @classmethod
    def of(cls, document: Any) -> Classifier:
        """From its document; raises InputError for anything else, and for one that knows other
        features."""
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
                f"this is no document of one ({error})",
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


def design(rows: Sequence[Features], mean: Array, scale: Array) -> Any:
    """The sparse matrix [n, numbers + words + meaning]."""
    from scipy.sparse import csr_array, hstack

    numbers = csr_array((np.array([row.numbers for row in rows]) - mean) / scale)
    starts = np.cumsum([0, *(len(row.words) for row in rows)])
    places = np.fromiter(
        (word for row in rows for word in row.words), dtype=np.int64, count=starts[-1]
    )
    values = np.fromiter(
        (value for row in rows for value in row.words.values()), dtype=float, count=starts[-1]
    )
    parts = [numbers, csr_array((values, places, starts), shape=(len(rows), WORDS))]
    meaning = np.array([row.meaning for row in rows])
    return hstack([*parts, csr_array(meaning)] if meaning.size else parts, format="csr")


def fit(rows: Sequence[Features], good: Array, strength: float) -> Regression:
    """The regression that these labels (1 good, 0 bad) give."""
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
    """Slope and intercept of Platt's sigmoid for these margins."""
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
    """Chances of being good [n]."""
    return _sigmoid(calibration[0] * margins + calibration[1])


def _sigmoid(values: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(values / 2)))
