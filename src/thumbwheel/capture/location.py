"""Where an import reads: a path, or the address of a database, which goes the way of a path but
keeps its text and hides its secrets.

Lives here: telling the two apart, and hiding. Not here: what is read there (`sources/`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PosixPath
from urllib.parse import unquote

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
SETTING = re.compile(
    r"(?<!\w)(?=\w*pass)(?P<name>\w++)\s*+=\s*+(?P<value>'(?:[^'\\]++|\\.)*+'|\S++)",
    re.IGNORECASE,
)
"""Of the other form of PostgreSQL's addresses: host=localhost password=secret."""
SECRET_PARAMETER = re.compile(r"pass|secret|token|key", re.IGNORECASE)
HIDDEN = "***"


class Address(PosixPath):
    """A URL in the place of a path: no such file exists; `url` is the text as given, everything
    else of it is without secrets."""

    def __new__(cls, url: str) -> Address:
        return super().__new__(cls, without_secrets(url))

    def __init__(self, url: str) -> None:
        if sys.version_info >= (3, 12):
            super().__init__(without_secrets(url))
        self.url = url

    def __str__(self) -> str:
        return without_secrets(self.url)

    def hide(self, text: str) -> str:
        """`text`, such as a driver's error, without the secrets of this address or parts of them.

        >>> Address("postgresql://app:s3c/ret@localhost/desk").hide('invalid port number: "s3c"')
        'invalid port number: "***"'
        """
        for start, end in _secret_spans(self.url):
            secret = self.url[start:end]
            parts = [part for part in re.split(r"[@:/?#&=%\s]", secret) if len(part) >= 3]
            forms = {secret, unquote(secret), *parts, *map(unquote, parts)} - {""}
            for form in sorted(forms, key=len, reverse=True):
                text = text.replace(form, HIDDEN)
        return text


def without_secrets(url: str) -> str:
    """The address with *** for every password, whatever characters it has.

    >>> without_secrets("postgresql://app:se:c@r/et@localhost/desk?sslpassword=x&schema=a")
    'postgresql://app:***@localhost/desk?sslpassword=***&schema=a'
    """
    for start, end in reversed(_secret_spans(url)):
        url = f"{url[:start]}{HIDDEN}{url[end:]}"
    return url


def _secret_spans(url: str) -> list[tuple[int, int]]:
    """Where the passwords of an address stand in it, in order."""
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


def path_or_address(text: str) -> Path:
    """The path or the address that `text` is.

    >>> str(path_or_address("postgresql://app:secret@localhost/desk"))
    'postgresql://app:***@localhost/desk'
    """
    return Address(text) if SCHEME.match(text) or SETTING.search(text) else Path(text)
