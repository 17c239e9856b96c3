"""Secrets are taken out before anything is stored: values under telling keys, texts that look like
a key of a known kind, and every other place where a value stands that was found under a telling
key.

Lives here: which names tell of a secret, and how it is taken out of a record. Not here: how a key
looks (`detectors`), what else is left out of a format (`sources/`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from thumbwheel.sdk.detectors import CREDENTIAL, KEY, replaced

GONE = "[secret removed]"
KEYS = re.compile(
    r"(^|[_.\-\s])(x?api[_\-]?keys?|apikey|secrets?|secret[_\-]?key|client[_\-]?secret|password|passwd|passphrase|authorization|bearer"
    r"|(access|auth|refresh|session|id|bot|api|github|gitlab|hf)[_\-]?token|(?<![^.\s])token|pwd"
    r"|(private|access|signing|encryption)[_\-]?key"
    r"|credentials?|cookie|amd[_\-]?data)$",
    re.IGNORECASE,
)
"""Names of keys whose values are secret; counts of tokens, `eos_token` and the like are none."""
SHORTEST = 6
"""Characters of a value that is looked for elsewhere; a shorter one would be found everywhere."""
MOST_SECRETS = 200
"""Values of one record that are looked for elsewhere in it. Each is one pass over every text, so
without a bound a record of many would take a time that grows as the square of its size."""


def telling(key: str) -> bool:
    """Return whether a value under this key is secret.

    >>> [telling(key) for key in ("api_key", "OPENAI_API_KEY", "aws_secret_access_key", "token")]
    [True, True, True, True]
    >>> [telling(key) for key in ("total_tokens_in", "eos_token")]
    [False, False]
    """
    return bool(KEYS.search(key)) or bool(KEYS.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key)))


def is_secret_key(key: Any, parent: Mapping[Any, Any]) -> bool:
    """Return whether the key is `telling`, except for the tokens of a model's answer, which stand
    beside their probability."""
    return telling(str(key)) and not (key == "token" and "logprob" in parent)


def secrets_in(value: Any) -> set[str]:
    """Return every text under a telling key in `value` (JSON values) that is long enough to search
    for."""
    return {text for text in _under(value, False) if len(text) >= SHORTEST}


def _under(value: Any, secret: bool) -> Iterator[str]:
    """Yield the texts in `value` under a telling key; all of them if it is `secret` itself."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            is_telling = is_secret_key(key, value) and str(key) != "amd_data"
            is_inside = secret and isinstance(part, Mapping | list)
            yield from _under(part, is_telling or is_inside)
    elif isinstance(value, list):
        for part in value:
            yield from _under(part, secret)
    elif secret and isinstance(value, str):
        yield value


def redacted(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return `value` (JSON values) with secrets replaced by GONE; `secrets` are texts that are
    secret wherever they occur."""
    return _without(value, longest_first({*secrets, *secrets_in(value)}))


def longest_first(secrets: Iterable[str]) -> list[str]:
    """Return the texts in the order in which `without_secrets` has to take them out."""
    return sorted(secrets, key=lambda secret: (-len(secret), secret))


def without_secrets(text: str, secrets: Sequence[str]) -> tuple[str, int]:
    """Return `text` with GONE in the place of each of `secrets` (longest first), and how often.

    A text beside more than MOST_SECRETS of them goes as a whole: nothing of it may stay unsearched.
    """
    if len(secrets) > MOST_SECRETS:
        return (GONE, 1) if len(text) >= SHORTEST else (text, 0)
    pieces = [text]
    for secret in secrets:
        if secret in text:
            pieces = [part for piece in pieces for part in piece.split(secret)]
    return GONE.join(pieces), len(pieces) - 1


def _without(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        text, _ = without_secrets(value, secrets)
        return replaced(text, (KEY, CREDENTIAL), lambda kind: GONE)
    if isinstance(value, list):
        return [_without(part, secrets) for part in value]
    if not isinstance(value, Mapping):
        return value
    clean = {}
    for key, part in value.items():
        is_secret = is_secret_key(key, value) and part
        clean[_without(key, secrets)] = GONE if is_secret else _without(part, secrets)
    return clean
