"""What in a text may name a person or open a door: addresses, numbers with a check digit, keys.
Patterns first, then checksums.

Finds what is written in a usual form; names and postal addresses are not found. To add a kind: a
pattern, and a check where there is one, in KINDS; and in NEEDS what a text without a match lacks,
where that is quicker to see: most texts have none of it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator

SECRET = "api key"


def find_pii(text: str) -> Iterator[tuple[str, str]]:
    """(kind, what was found), in the order of KINDS.

    >>> list(find_pii("mail jane@example.org, card 4111 1111 1111 1111"))
    [('email', 'jane@example.org'), ('card', '4111 1111 1111 1111')]
    """
    for kind, (pattern, genuine) in KINDS.items():
        if not NEEDS[kind](text):
            continue
        yield from (
            (kind, match.group()) for match in pattern.finditer(text) if genuine(match.group())
        )


def _luhn(text: str) -> bool:
    digits = [int(one) for one in text if one.isdigit()]
    doubled = [
        sum(divmod(2 * one, 10)) if place % 2 else one for place, one in enumerate(reversed(digits))
    ]
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and sum(doubled) % 10 == 0


def _iban(text: str) -> bool:
    plain = "".join(text.split())
    return (
        15 <= len(plain) <= 34
        and int("".join(str(int(one, 36)) for one in plain[4:] + plain[:4])) % 97 == 1
    )


def _address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


def _phone(text: str) -> bool:
    return 9 <= sum(one.isdigit() for one in text) <= 15


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
"""Kind -> whether a text has what every match of the kind needs."""
