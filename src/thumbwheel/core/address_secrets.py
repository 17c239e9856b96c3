"""Secrets inside of addresses: where they stand, and the address without them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
SETTING = re.compile(
    r"(?<!\w)(?=\w*pass)(?P<name>\w++)\s*+=\s*+(?P<value>'(?:[^'\\]++|\\.)*+'|\S++)",
    re.IGNORECASE,
)
"""Of the other form of PostgreSQL's addresses: host=localhost password=secret."""
SECRET_PARAMETER = re.compile(r"pass|secret|token|key", re.IGNORECASE)
HIDDEN = "***"


def without_secrets(url: str) -> str:
    """Return the address with *** in place of every password, whatever characters it has.

    >>> without_secrets("postgresql://app:se:c@r/et@localhost/desk?sslpassword=x&schema=a")
    'postgresql://app:***@localhost/desk?sslpassword=***&schema=a'
    """
    for start, end in reversed(secret_spans(url)):
        url = f"{url[:start]}{HIDDEN}{url[end:]}"
    return url


def without_path(value: Any) -> Any:
    """Return an address with ... in place of all but its scheme and host, and any other value as it
    is: the address of a webhook has its secret in the path.

    >>> without_path("https://hooks.slack.com/services/T0/B0/secret"), without_path("auto")
    ('https://hooks.slack.com/...', 'auto')
    """
    if not isinstance(value, str):
        return value
    scheme, mark, rest = value.partition("://")
    if not mark:
        return without_secrets(value)
    address = re.split(r"[/?#]", rest, maxsplit=1)[0]
    host = address.rpartition("@")[2]
    return value if host == rest else f"{scheme}://{host}/..."


def secret_spans(url: str) -> list[tuple[int, int]]:
    """Return the (start, end) positions of the passwords in an address, in order."""
    scheme = SCHEME.match(url)
    if scheme is None:
        return [setting.span("value") for setting in SETTING.finditer(url)]
    start = scheme.end()
    mark = url.find("?", start)
    head_end = len(url) if mark < 0 else mark
    host = url[start:head_end].partition("/")[0]
    if "@" not in url[start:head_end] and ":" in host:
        head_end = max(head_end, url.rfind("@"))  # a password with a question mark
    spans = []
    user_end = url.rfind("@", start, head_end + 1)
    colon = url.find(":", start, max(user_end, start))
    if 0 <= colon < user_end - 1:
        spans.append((colon + 1, user_end))
    position = url.find("?", max(head_end, user_end))
    while 0 <= position < len(url):
        parameter_end = url.find("&", position + 1)
        parameter_end = len(url) if parameter_end < 0 else parameter_end
        name, equals, value = url[position + 1 : parameter_end].partition("=")
        if value and SECRET_PARAMETER.search(unquote(name)):
            spans.append((position + 1 + len(name) + len(equals), parameter_end))
        position = parameter_end
    return spans


def addresses_with_secrets(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value that is an address with a secret, each without it."""
    match value:
        case str():
            shown = (
                without_secrets(value) if SCHEME.match(value) or SETTING.search(value) else value
            )
            if shown != value:
                yield shown
        case Mapping():
            for part in value.values():
                yield from addresses_with_secrets(part)
        case list() | tuple():
            for part in value:
                yield from addresses_with_secrets(part)
