"""Whether a trainer learns from a message, or from a row: `weight`, `loss`, `train`, `mask` and
their like, as OpenAI, Axolotl, ms-swift, torchtune and others write them.

Not here: what people said of an answer (`marks.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from thumbwheel.importers.fields import number_of
from thumbwheel.importers.types import Unreadable

Row = Mapping[str, Any]
WEIGHTS = (
    "weight",
    "loss",
    "loss_weight",
    "loss_scale",
    "loss_mask",
    "train",
    "training",
    "trainable",
)
"""Keys of a message that are 0 or false where nothing is learned from it."""
MASKS = ("mask", "masked")
"""Keys of a message that are true where nothing is learned from it."""
DETAILS = ("train_detail", "training_detail")
"""Keys of the parts of a message with a `train` each."""
ROW_WEIGHTS = ("weight", "sample_weight", "loss_weight")
"""Keys of a row that are 0 where nothing is learned from it."""
ROW_SWITCHES = ("train", "training", "trainable", "loss")
"""Keys of a row that are false where nothing is learned from it; their numbers are anything."""
ROW_CHOICES = ("keep", "include", "included", "use", "selected", "valid", "validated", "verified")
ROW_REMOVALS = ("exclude", "excluded", "discard", "discarded", "ignore", "skip", "deleted")
"""Keys of a row by which people sort rows out; their texts are anything."""
TURN_SWITCHES = frozenset(
    {
        *("weight", "weights", "loss", "losses", "mask", "masks", "masked"),
        *("train", "training", "trainable", "trained", "learn", "learned", "learnable"),
    }
)
"""Words in the key of a row whose list may have a switch for each message."""
ERRORS = ("error", "is_error", "isError", "has_error", "error_message")
"""Keys that say something where the model failed."""
STATES = ("status", "state")
FAILED = frozenset(
    {"aborted", "cancelled", "canceled", "error", "failed", "failure", "incomplete", "timeout"}
)
"""Keys of the state of an answer, and its words for one that did not come to its end."""


def failure_in(row: Row) -> str | None:
    """Return the key under which a row or message says that its answer failed; None if none does.

    >>> failure_in({"error": None, "status": "timeout"}), failure_in({"error": False})
    ('status', None)
    """
    for key in ERRORS:
        if row.get(key) not in (None, False, 0, "", {}, []) and _as_bool(row[key]) is not False:
            return key
    for key in STATES:
        value = row.get(key)
        if isinstance(value, str) and value.strip().casefold() in FAILED:
            return key
    return None


def loss_marks(message: Row) -> Row:
    """Return the keys of a message that say whether a trainer learns from it."""
    keys = {*WEIGHTS, *MASKS, *DETAILS}
    return {key: value for key, value in message.items() if key in keys}


def is_message_learned(message: Row) -> bool:
    """Return whether a trainer learns from the message. Raises Unreadable if its marks are
    ambiguous, or select only a part of it."""
    switches = [_is_on(key, message.get(key)) for key in WEIGHTS]
    switches += [_is_unmasked(key, message.get(key)) for key in MASKS]
    switches += [_is_detail_on(key, message.get(key)) for key in DETAILS]
    return all(switches) and failure_in(message) is None


def is_row_learned(row: Row, skip: Collection[str] = ()) -> bool:
    """Return whether a trainer learns from the row. Raises Unreadable for an invalid weight, and
    for a list beside the messages that switches some of them off; `skip` are keys that say nothing
    of it."""
    for key, value in row.items():
        if key not in skip and _switches_turns(key, value):
            raise Unreadable(
                f"its key {key} may switch single messages off; give each message its weight, 1 or "
                f"0. If it says nothing of that: --column metadata={key}"
            )
    switches = [_is_on(key, row.get(key)) for key in ROW_WEIGHTS]
    switches += [_as_bool(row.get(key)) is not False for key in (*ROW_SWITCHES, *ROW_CHOICES)]
    switches += [_as_bool(row.get(key)) is not True for key in ROW_REMOVALS]
    return all(switches)


def _switches_turns(key: str, value: Any) -> bool:
    """Return whether a list of a row may say which of its messages are learned from.

    >>> _switches_turns("loss_weights", [0, 1.0]), _switches_turns("loss", [0.7, 0.2])
    (True, False)
    """
    if key in ROW_WEIGHTS or not isinstance(value, list):
        return False
    if TURN_SWITCHES.isdisjoint(key.lower().split("_")):
        return False
    are_numbers = all(isinstance(part, int | float) for part in value)
    return are_numbers and (0 in value or ("turn" in key and bool(value)))


def _is_on(key: str, value: Any) -> bool:
    """Return whether a weight, or every one of a list of weights, is above 0."""
    if value is None or value == "":
        return True
    if isinstance(value, list):
        return _all_alike(key, [_is_on(key, weight) for weight in value])
    switch = _as_bool(value)
    if switch is not None:
        return switch
    number = number_of(value, key)
    if number < 0:
        raise Unreadable(f"{key} {value!r} of a message is less than 0, which nobody learns")
    return number > 0


def _is_unmasked(key: str, value: Any) -> bool:
    """Return whether a mask is off. As the numbers of a `mask` are used both ways, only true and
    false count. Raises Unreadable."""
    if value is None or value == "":
        return True
    switch = _as_bool(value)
    if switch is None and key == "masked" and value in (0, 1):
        switch = bool(value)
    if switch is None:
        raise Unreadable(
            f"{key} {value!r} of a message may mean that it is learned or that it is not; write "
            "weight 1 or 0 in its place"
        )
    return not switch


def _is_detail_on(key: str, parts: Any) -> bool:
    """Return whether all parts of a message are learned from."""
    if not parts:
        return True
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise Unreadable(f"{key} of a message is no list of its parts")
    return _all_alike(key, [_is_on(key, part.get("train", True)) for part in parts])


def _all_alike(key: str, switches: list[bool]) -> bool:
    """Return the value that all switches share. Raises Unreadable if they differ."""
    if len(set(switches)) > 1:
        raise Unreadable(
            f"{key} says that a part of a message is learned, but a message is learned whole or "
            "not at all; give the message weight 1 or 0"
        )
    return all(switches)


def _as_bool(value: Any) -> bool | None:
    if isinstance(value, str) and value.strip().casefold() in ("true", "false"):
        return value.strip().casefold() == "true"
    return value if isinstance(value, bool) else None
