"""Every error that a user can meet.

    ThumbwheelError            base; `exit_code` is what the command line returns
    ├── ConfigError            a setting is unknown or has an impossible value            2
    ├── InputError             what was given cannot be read or is out of range           2
    ├── NotFound               a name or an id that does not exist here                    2
    ├── MissingExtra           an optional part is not installed                           2
    ├── Conflict               somebody else holds it, or the state forbids the move       3
    ├── DataError              the data exists but cannot support what was asked           4
    ├── ModelError             a base, an adapter or a tokenizer that cannot be used       5
    ├── TrainingError          a run stopped itself: divergence, NaN, collapse             6
    └── StorageError           disk full, database locked, a blob that is not its hash     7

An error says what was given, why it cannot work and what to do next. A failed item (one line of an
import, one generation) is data and never raised. A failed invariant is a crash and none of these.
"""

from __future__ import annotations


class ThumbwheelError(Exception):
    """What was given, why it cannot work, what to do next."""

    exit_code = 1

    def __init__(self, what: str, why: str, fix: str) -> None:
        self.what, self.why, self.fix = what, why, fix
        super().__init__(f"{what}: {why}. {fix}")

    def __reduce__(self) -> tuple[type[ThumbwheelError], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.fix)


class ConfigError(ThumbwheelError):
    """A setting is unknown or has an impossible value."""

    exit_code = 2


class InputError(ThumbwheelError):
    """What was given cannot be read or is out of range."""

    exit_code = 2


class NotFound(ThumbwheelError):
    """A name or an id that does not exist here."""

    exit_code = 2


class MissingExtra(ThumbwheelError):
    """An optional part is not installed."""

    exit_code = 2

    @classmethod
    def of(cls, what: str, module: str, extra: str) -> MissingExtra:
        """The error for `what`, which needs `module` from the extra `extra`."""
        return cls(
            what,
            f"the Python package {module!r} is not installed",
            f"Run: pip install 'thumbwheel[{extra}]'",
        )


class Conflict(ThumbwheelError):
    """Somebody else holds it, or its state forbids the move."""

    exit_code = 3


class DataError(ThumbwheelError):
    """The data exists but cannot support what was asked."""

    exit_code = 4


class ModelError(ThumbwheelError):
    """A base, an adapter or a tokenizer that cannot be used."""

    exit_code = 5


class TrainingError(ThumbwheelError):
    """A run stopped itself: divergence, NaN, collapse."""

    exit_code = 6


class StorageError(ThumbwheelError):
    """Disk full, database locked, a blob that is not its hash."""

    exit_code = 7
