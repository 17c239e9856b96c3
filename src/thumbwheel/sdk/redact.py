"""Secrets are taken out before anything is stored: values under telling keys, texts that look like
a key of a known kind, and every other place where a value stands that was found under a telling
key.

Lives here: what counts as a secret. Not here: what else is left out of a format (`sources/`). To
add a kind of key, add it to PATTERNS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

GONE = "[secret removed]"
KEYS = re.compile(
    r"(^|[_.\-\s])(x?api[_\-]?keys?|apikey|secrets?|secret[_\-]?key|client[_\-]?secret|password|passwd|passphrase|authorization|bearer"
    r"|(access|auth|refresh|session|id|bot|api|github|gitlab|hf)[_\-]?token|(?<![^.\s])token|pwd"
    r"|(private|access|signing|encryption)[_\-]?key"
    r"|credentials?|cookie|amd[_\-]?data)$",
    re.IGNORECASE,
)
"""Names of keys whose values are secret; counts of tokens, `eos_token` and the like are none."""
PATTERNS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}|\bsk_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_-]{35}|\bgh[opusr]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}"
    r"|\bglpat-[A-Za-z0-9_-]{20,}|\bxox[abeprs]-[A-Za-z0-9-]{10,}|\bhf_[A-Za-z0-9]{30,}|\bgsk_[A-Za-z0-9]{30,}"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+"
    r"|(?<=://)[^/\s:@]+:[^/\s:@]+(?=@)"
    r"|(?i:(?<=bearer )[A-Za-z0-9._~+/=-]{16,})"
    r"|(?i:(?:api[_-]?key|secret[_-]?key|client[_-]?secret|password|passwd|(?:access|auth|refresh)[_-]?token)\\?[\"']?\s*[=:]\s*\\?[\"']?)"
    r"[^\s\"',;}\\]{6,}",
    re.DOTALL,
)
SHORTEST = 6
"""Characters of a value that is looked for elsewhere; a shorter one would be found everywhere."""


def telling(key: str) -> bool:
    """Whether a value under this key is secret.

    >>> [telling(key) for key in ("api_key", "OPENAI_API_KEY", "aws_secret_access_key", "token")]
    [True, True, True, True]
    >>> [telling(key) for key in ("total_tokens_in", "eos_token")]
    [False, False]
    """
    return bool(KEYS.search(key)) or bool(KEYS.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key)))


def _telling(key: Any, parent: Mapping[Any, Any]) -> bool:
    """`telling`, but for the tokens of a model's answer, which stand beside their probability."""
    return telling(str(key)) and not (key == "token" and "logprob" in parent)


def secrets_in(value: Any) -> set[str]:
    """Every text under a telling key in `value` (JSON values), long enough to be looked for."""
    return {text for text in _under(value, False) if len(text) >= SHORTEST}


def _under(value: Any, secret: bool) -> Iterator[str]:
    """The texts in `value` under a telling key; all of them where it is `secret` itself."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            is_telling = _telling(key, value) and str(key) != "amd_data"
            is_inside = secret and isinstance(part, Mapping | list)
            yield from _under(part, is_telling or is_inside)
    elif isinstance(value, list):
        for part in value:
            yield from _under(part, secret)
    elif secret and isinstance(value, str):
        yield value


def redacted(value: Any, secrets: Iterable[str] = ()) -> Any:
    """`value` (JSON values) with secrets replaced by GONE; `secrets` are texts that are secret
    wherever they stand."""
    texts = sorted({*secrets, *secrets_in(value)}, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
    return _without(value, pattern)


def _without(value: Any, secrets: re.Pattern[str] | None) -> Any:
    if isinstance(value, str):
        text = secrets.sub(GONE, value) if secrets else value
        return PATTERNS.sub(GONE, text)
    if isinstance(value, list):
        return [_without(part, secrets) for part in value]
    if not isinstance(value, Mapping):
        return value
    clean = {}
    for key, part in value.items():
        is_secret = _telling(key, value) and part
        clean[_without(key, secrets)] = GONE if is_secret else _without(part, secrets)
    return clean
