"""Which arm a unit gets: by a hash of the experiment's salt and the unit, so that it needs no table
and gives the same answer in every process.

A change of the shares moves as few units as the order of the arms allows. A unit that is moved is
no longer counted (exposures.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from thumbwheel.experiments.types import Experiment, Unit

SCALE = float(1 << 64)


def position(salt: str, unit: str) -> float:
    """Return the position of a unit in [0, 1).

    >>> round(position("exp1", "user-1"), 12), round(position("exp1", "ü"), 12)
    (0.070261344899, 0.289387744477)
    """
    return _number(digest(salt, unit))


def digest(salt: str, unit: str) -> bytes:
    """Return the sha256 of `salt:unit`."""
    return hashlib.sha256(f"{salt}:{unit}".encode("utf-8", "surrogatepass")).digest()


def _number(hashed: bytes) -> float:
    return int.from_bytes(hashed[:8], "big") / SCALE


@dataclass(frozen=True, slots=True)
class Draw:
    """The arm of a unit; `arm` None where it takes no part, for `reason`."""

    unit: str | None
    """The salted hash under which the unit is known."""
    arm: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The shares in force of one experiment, ready to draw from."""

    experiment: str
    salt: str
    unit: Unit
    stratum: int
    arms: Sequence[str]
    ends: Sequence[float]
    """Where in [0, 1) each arm's part ends."""
    hold_out: float = 0.0
    group: str = ""
    group_range: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def of(cls, experiment: Experiment) -> Assignment:
        """Return the assignment by the newest stratum."""
        plan = experiment.plan
        shares = [experiment.stratum.shares.get(arm.name, 0.0) for arm in plan.arms]
        total = sum(shares)
        ends, end = [], 0.0
        for share in shares:
            end += share / total
            ends.append(end)
        ends[-1] = 1.0
        return cls(
            experiment.id,
            experiment.salt,
            plan.config.unit,
            experiment.stratum.number,
            tuple(arm.name for arm in plan.arms),
            tuple(ends),
            plan.config.hold_out,
            plan.config.group,
            plan.group_range or (0.0, 1.0),
        )

    def draw(self, unit: str | None) -> Draw:
        """Draw the arm of the unit with this name; None stands for a call that names no unit."""
        if not unit:
            return Draw(None, None, f"the call names no {self.unit}")
        hashed = digest(self.salt, unit)
        name = hashed.hex()[:40]
        if self.group:
            low, high = self.group_range
            if not low <= position(f"group {self.group}", unit) < high:
                return Draw(name, None, f"outside its part of group {self.group}")
        point = _number(hashed)
        drawn_part = 1.0 - self.hold_out
        if point >= drawn_part:
            return Draw(name, None, "hold-out")
        point /= drawn_part
        for arm, end in zip(self.arms, self.ends, strict=True):
            if point < end:
                return Draw(name, arm)
        return Draw(name, self.arms[-1])
