"""Every error that a user can meet.

    ThumbwheelError            base; `exit_code` is what the command line returns
    ├── ConfigError            a setting is unknown or has an impossible value            2
    ├── InputError             what was given cannot be read or is out of range           2
    ├── NotFound               a name or an id that does not exist here                    2
    ├── MissingExtra           an optional part is not installed                           2
    ├── Conflict               somebody else holds it, or the state forbids the move       3
    │   └── Changed            it is not any more as it was when it was read               3
    ├── DataError              the data exists but cannot support what was asked           4
    ├── ModelError             a base, an adapter or a tokenizer that cannot be used       5
    ├── TrainingError          a run stopped itself: divergence, NaN, collapse             6
    ├── StorageError           disk full, database locked, a blob that is not its hash     7
    ├── Busy                   too much waits already; nothing of this was accepted        8
    ├── Unauthenticated        nobody who is here presents what the request presents       9
    ├── Forbidden              who asks may not do this                                   10
    ├── Fenced                 another worker does this job now; nothing was written      11
    └── DeliveryError          the receiver of a notice did not take it                   12

`http_status` is what the API answers with. An error says what was given, why it cannot work and
what to do next. A failed item (one line of an
import, one generation) is data and never raised. A failed invariant is a crash and none of these.
"""

from __future__ import annotations

import os
from typing import TypeVar

E = TypeVar("E", bound="ThumbwheelError")


class ThumbwheelError(Exception):
    """What was given, why it cannot work, what to do next."""

    exit_code = 1
    http_status = 500
    field: str | None = None
    """The setting or parameter that it is about, by which a form shows it there."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        self.what, self.why, self.fix = what, why, fix
        super().__init__(f"{what}: {why}. {fix}")

    def shown(self, *, sees_everything: bool) -> ThumbwheelError:
        """Return the error to show to a user; `sees_everything` says whether nothing must be
        hidden."""
        return self

    def __reduce__(self) -> tuple[type[ThumbwheelError], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.fix)


def public_reason(error: BaseException) -> str:
    """Return why something failed as /health says it, which answers without a key: the kind of the
    error, and the words of the operating system. The text of an error may quote a path, an address
    of the database, a name of an agent, or what somebody wrote; it belongs into the log.

    >>> public_reason(OSError(28, "No space left on device", "/srv/home/inbox"))
    'OSError (No space left on device)'
    >>> public_reason(ValueError("not a number: 'my secret'"))
    'ValueError'
    """
    for cause in (error, error.__cause__):
        if isinstance(cause, OSError) and cause.strerror and cause.errno is not None:
            return f"{type(error).__name__} ({os.strerror(cause.errno)})"
    return type(error).__name__


def at_field(error: E, field: str) -> E:
    """Return the error, which is about this setting or parameter from now on."""
    error.field = field
    return error


class ConfigError(ThumbwheelError):
    """A setting is unknown or has an impossible value."""

    exit_code = 2
    http_status = 422


class InputError(ThumbwheelError):
    """What was given cannot be read or is out of range."""

    exit_code = 2
    http_status = 422


class NotFound(ThumbwheelError):
    """A name or an id that does not exist here.

    `outside` is what those do next who may not see everything here, where `fix` lists names of
    agents or people.
    """

    exit_code = 2
    http_status = 404

    def __init__(self, what: str, why: str, fix: str, outside: str | None = None) -> None:
        super().__init__(what, why, fix)
        self.outside = outside

    def shown(self, *, sees_everything: bool) -> ThumbwheelError:
        if sees_everything or self.outside is None:
            return self
        return NotFound(self.what, self.why, self.outside)


class MissingExtra(ThumbwheelError):
    """An optional part is not installed."""

    exit_code = 2
    http_status = 501

    @classmethod
    def of(cls, what: str, module: str, extra: str) -> MissingExtra:
        """Return the error for `what`, which needs `module` from the extra `extra`."""
        return cls(
            what,
            f"the Python package {module!r} is not installed",
            f"Run: pip install 'thumbwheel[{extra}]'",
        )


class Conflict(ThumbwheelError):
    """Somebody else holds it, or its state forbids the move."""

    exit_code = 3
    http_status = 409


class Changed(Conflict):
    """It is not any more as it was when whoever wants to change it read it."""

    http_status = 412


class DataError(ThumbwheelError):
    """The data exists but cannot support what was asked."""

    exit_code = 4
    http_status = 422


class ModelError(ThumbwheelError):
    """A base, an adapter or a tokenizer that cannot be used."""

    exit_code = 5
    http_status = 422


class TrainingError(ThumbwheelError):
    """A run stopped itself: divergence, NaN, collapse."""

    exit_code = 6
    http_status = 422


class StorageError(ThumbwheelError):
    """Disk full, database locked, a blob that is not its hash."""

    exit_code = 7
    http_status = 503


class Busy(ThumbwheelError):
    """Too much waits already, and nothing of this was accepted; the same may be sent again after
    `retry_after` seconds."""

    exit_code = 8
    http_status = 429
    retry_after = 1


class Unauthenticated(ThumbwheelError):
    """Nobody who is here presents what the request presents."""

    exit_code = 9
    http_status = 401


class Forbidden(ThumbwheelError):
    """Who asks may not do this."""

    exit_code = 10
    http_status = 403


class Fenced(ThumbwheelError):
    """Another worker does this job by now, so nothing of this process may be written any more."""

    exit_code = 11
    http_status = 409


class DeliveryError(ThumbwheelError):
    """The receiver of a notice did not take it."""

    exit_code = 12
    http_status = 502
