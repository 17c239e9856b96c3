"""Finds personal data and secrets in a text: e-mail and IP addresses, phone, card and bank account
numbers, API keys. Patterns first, then checksums.

Only usual spellings are found; names and postal addresses are not. To add a kind, put its pattern
and its checksum into KINDS, and into NEEDS a quick test that every match passes: most texts fail
it, so the pattern need not run.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator

SECRET = "api key"


def find_pii(text: str) -> Iterator[tuple[str, str]]:
    """(kind, match), in the order of KINDS.

    >>> list(find_pii("mail jane@example.org, card 4111 1111 1111 1111"))
    [('email', 'jane@example.org'), ('card', '4111 1111 1111 1111')]
    """
    for kind, (pattern, genuine) in KINDS.items():
        if not NEEDS[kind](text):
            continue
        for match in pattern.finditer(text):
            if genuine(match.group()):
                yield kind, match.group()


def _luhn(text: str) -> bool:
    digits = [int(character) for character in text if character.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) == 1:
        return False
    every_second = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(every_second)) % 10 == 0


def _iban(text: str) -> bool:
    plain = "".join(text.split())
    if not 15 <= len(plain) <= 34:
        return False
    numbers = [str(int(character, 36)) for character in plain[4:] + plain[:4]]
    return int("".join(numbers)) % 97 == 1


def _address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


def _phone(text: str) -> bool:
    return 9 <= sum(character.isdigit() for character in text) <= 15


def _always(text: str) -> bool:
    return True


KINDS: dict[str, tuple[re.Pattern[str], Callable[[str], bool]]] = {
    "email": (
        re.compile(r"\b[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"),
        _always,
    ),
    "iban": (re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), _iban),
    "card": (re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])"), _luhn),
    "phone": (re.compile(r"(?<![\w.+-])\+\d{1,3}(?:[ ./-]?\(?\d{1,5}\)?){2,6}(?!\w)"), _phone),
    "ip address": (re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), _address),
    SECRET: (
        re.compile(
            r"\b(?:sk-(?:ant-|proj-)?[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{50,}|AKIA[0-9A-Z]{16}"
            r"|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[\w-]{35}|hf_[A-Za-z0-9]{30,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,})"
            r"|-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"
        ),
        _always,
    ),
}
_LETTERS_AND_DIGITS, _DIGITS = re.compile(r"[A-Z]{2}\d\d"), re.compile(r"\d(?:[ -]?\d){12}")
_KEYS = (
    "sk-",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "AKIA",
    "xox",
    "AIza",
    "hf_",
    "eyJ",
    "PRIVATE KEY",
)
NEEDS: dict[str, Callable[[str], object]] = {
    "email": lambda text: "@" in text,
    "iban": _LETTERS_AND_DIGITS.search,
    "card": _DIGITS.search,
    "phone": lambda text: "+" in text,
    "ip address": lambda text: text.count(".") >= 3,
    SECRET: lambda text: any(key in text for key in _KEYS),
}
"""Kind -> a quick test that every text with a match passes."""
