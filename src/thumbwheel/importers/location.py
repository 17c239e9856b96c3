"""Where an import reads: a path, or the address of a database, which goes the way of a path but
keeps its text and hides its secrets.

Lives here: telling the two apart. Not here: what is read there (`sources/`), where secrets stand in
an address (`core/address_secrets.py`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PosixPath
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from thumbwheel.core.address_secrets import (
    HIDDEN,
    SCHEME,
    SETTING,
    secret_spans,
    without_secrets,
)
from thumbwheel.core.errors import InputError


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
        """Return `text`, such as a driver's error, without the secrets of this address or parts of
        them.

        >>> Address("postgresql://app:s3c/ret@localhost/desk").hide('invalid port number: "s3c"')
        'invalid port number: "***"'
        """
        for start, end in secret_spans(self.url):
            secret = self.url[start:end]
            parts = [part for part in re.split(r"[@:/?#&=%\s]", secret) if len(part) >= 3]
            forms = {secret, unquote(secret), *parts, *map(unquote, parts)} - {""}
            for form in sorted(forms, key=len, reverse=True):
                text = text.replace(form, HIDDEN)
        return text


def path_or_address(text: str) -> Path:
    """Return `text` as an address if it looks like one, else as a path.

    >>> str(path_or_address("postgresql://app:secret@localhost/desk"))
    'postgresql://app:***@localhost/desk'
    """
    return Address(text) if SCHEME.match(text) or SETTING.search(text) else Path(text)


def with_password(address: Address, password: str) -> Address:
    """Return the address with this password for its user. Raises InputError for an address without
    a user, or with a password."""
    parts = urlsplit(address.url)
    if not parts.username or parts.password:
        raise InputError(
            f"address {str(address)!r}",
            "a stored password needs an address with a user and without a password",
            "Write it as postgresql://USER@HOST/DATABASE",
        )
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{user}:{quote(password, safe='')}@{host}"
    return Address(urlunsplit(parts._replace(netloc=netloc)))
