"""Finds personal data and secrets in a text: e-mail and IP addresses, phone, card and bank account
numbers, API keys and other credentials. Patterns first, then checksums.

Only usual spellings are found; names and postal addresses are not. It lives in the sdk, so that
every stage and an app that records itself use the same detectors. To add a kind, add a Detector to
DETECTORS.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

EMAIL, IBAN, CARD, PHONE, IP_ADDRESS = "email", "iban", "card", "phone", "ip address"
KEY = "api key"
CREDENTIAL = "credential"
"""A secret that only its surroundings tell: after `password=`, after `Bearer`, in a URL."""
PERSONAL = (EMAIL, IBAN, CARD, PHONE, IP_ADDRESS)
KINDS = (*PERSONAL, KEY)
"""What counts in a text whose surroundings say nothing."""

IBAN_LENGTHS = dict(
    re.findall(
        r"(..)(\d\d)",
        "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BR29BY28CH21CR22CY28CZ24DE22DK18DO28EE20EG29ES24FI18"
        "FO18FR27GB22GE22GI23GL18GR27GT28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20"
        "LU20LV21LY25MC27MD24ME22MK19MR27MT31MU30NL18NO15OM23PK24PL28PS29PT25QA29RO24RS22SA24SC31"
        "SE24SI19SK24SM27ST25SV28TL23TN24TR26UA29VA22VG24XK20",
    )
)
"""Country -> characters of its account numbers."""


Span = tuple[int, int]
"""Start and end of something in a text."""


@dataclass(frozen=True)
class Detector:
    """One kind, and where it is in a text."""

    kind: str
    spans: Callable[[str], Iterator[Span]]


def find(text: str, kinds: Sequence[str] = KINDS) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, start, end) of every match, in the order of DETECTORS.

    >>> text = "mail jane@example.org, card 4111 1111 1111 1111"
    >>> [(kind, text[start:end]) for kind, start, end in find(text)]
    [('card', '4111 1111 1111 1111'), ('email', 'jane@example.org')]
    """
    for detector in DETECTORS:
        if detector.kind in kinds:
            for start, end in detector.spans(text):
                yield detector.kind, start, end


def replaced(text: str, kinds: Sequence[str], replacement: Callable[[str], str]) -> str:
    """Return `text` with `replacement(kind)` in place of every match.

    >>> replaced("I am jane@example.org", KINDS, lambda kind: f"[{kind} removed]")
    'I am [email removed]'
    """
    for detector in DETECTORS:
        if detector.kind in kinds:
            text, _ = without(detector, text, replacement(detector.kind))
    return text


def without(detector: Detector, text: str, replacement: str) -> tuple[str, int]:
    """Return (`text` with `replacement` in place of this detector's matches, number of
    replacements)."""
    spans = sorted(detector.spans(text))
    if not spans:
        return text, 0
    pieces: list[str] = []
    copied = count = 0
    for start, end in spans:
        if start >= copied:
            pieces += (text[copied:start], replacement)
            count += 1
        copied = max(copied, end)
    return "".join((*pieces, text[copied:])), count


def matches(
    pattern: re.Pattern[str],
    may_be_in: Callable[[str], object],
    genuine: Callable[[str], Span | None],
) -> Callable[[str], Iterator[Span]]:
    """Return a function that yields the genuine parts of a pattern's matches as spans. `may_be_in`
    is a quick test that every text with a match passes: most texts fail it, so the pattern need not
    run."""

    def spans(text: str) -> Iterator[Span]:
        if not may_be_in(text):
            return
        for match in pattern.finditer(text):
            part = genuine(match.group())
            if part is not None:
                yield match.start() + part[0], match.start() + part[1]

    return spans


def after_words(
    forms: Sequence[tuple[str, str]], *, ignore_case: bool = False
) -> Callable[[str], Iterator[Span]]:
    """Return a function that yields spans that begin with a word, each with a pattern of its own.
    Searching for the words takes a tenth of the time of a pattern with all of them."""
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    compiled = [(word, re.compile(pattern, flags)) for word, pattern in forms]

    def spans(text: str) -> Iterator[Span]:
        folded = _lower(text) if ignore_case else text
        for word, pattern in compiled:
            start = folded.find(word)
            while start >= 0:
                match = pattern.match(text, start)
                if match is None:
                    start = folded.find(word, start + 1)
                    continue
                # what a pattern captures is what counts
                yield match.span(pattern.groups)
                start = folded.find(word, match.end())

    return spans


def around_at_sign(
    local: re.Pattern[str], domain: re.Pattern[str]
) -> Callable[[str], Iterator[Span]]:
    """Return a function that yields the spans of mail addresses: `local` matches the end of the
    text before the @, `domain` the beginning of the text after it."""

    def spans(text: str) -> Iterator[Span]:
        position = text.find("@")
        while position >= 0:
            before = local.search(text, max(position - _LOCAL, 0), position)
            behind = domain.match(text, position + 1)
            if before is not None and behind is not None:
                yield before.start(), behind.end()
            position = text.find("@", position + 1)

    return spans


def _lower(text: str) -> str:
    """Return `text` in lower case, every character at its old position."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOWER)


def card_number(text: str) -> tuple[int, int] | None:
    """Return (start, end) of the groups of digits in `text` that pass Luhn's check like a card
    number, or None; other numbers may stand before and after them."""
    groups = [match.span() for match in re.finditer(r"\d+", text)]
    digits = [int(character) for character in text if character.isdecimal()]
    sums = _luhn_sums(digits)
    # groups of one digit each have hundreds of spans, so each is looked up in the sums
    counts = list(accumulate((end - start for start, end in groups), initial=0))
    for first, (start, _) in enumerate(groups):
        if text[start] not in "23456":
            continue
        begin = counts[first]
        for last in range(len(groups), first, -1):
            finish = counts[last]
            if 13 <= finish - begin <= 19 and _passes_luhn(digits, sums, begin, finish):
                return start, groups[last - 1][1]
    return None


def _luhn_sums(digits: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return two lists of the running sums of the digits, starting at 0: with the digits at odd
    indices doubled, and with the ones at even indices doubled."""
    sums = ([0], [0])
    for index, digit in enumerate(digits):
        doubled = sum(divmod(2 * digit, 10))
        for parity, totals in enumerate(sums):
            totals.append(totals[-1] + (digit if index % 2 == parity else doubled))
    return sums


def _passes_luhn(
    digits: Sequence[int], sums: tuple[list[int], list[int]], begin: int, finish: int
) -> bool:
    totals = sums[(finish - 1) % 2]  # in which the last digit is not doubled
    is_divisible = (totals[finish] - totals[begin]) % 10 == 0
    return is_divisible and len(set(digits[begin:finish])) > 1


def account_number(text: str) -> tuple[int, int] | None:
    """Return (start, end) of the IBAN that `text` begins with, or None: as long as its country's
    are, with a remainder of 1 by 97."""
    length = int(IBAN_LENGTHS.get(text[:2].upper(), 0))
    plain = ""
    for position, character in enumerate(text):
        if character.isalnum():
            plain += character
        if len(plain) == length:
            numbers = "".join(str(int(part, 36)) for part in plain[4:] + plain[:4])
            return (0, position + 1) if int(numbers) % 97 == 1 else None
    return None


def web_token(text: str) -> tuple[int, int] | None:
    """Return (start, end) of the JSON web token that `text` ends with, or None; its first part may
    follow other words."""
    head = text.partition(".")[0]
    start = _TOKEN_HEAD.search(head)
    return (start.start(), len(text)) if start is not None else None


def public_address(text: str) -> tuple[int, int] | None:
    """Return the span of all of `text` if it is an address of the public internet, else None."""
    try:
        return (0, len(text)) if ipaddress.ip_address(text).is_global else None
    except ValueError:
        return None


def phone_number(text: str) -> tuple[int, int] | None:
    """Return the span of all of `text` if it has as many digits as a number with a country code,
    else None."""
    digits = sum(character.isdecimal() for character in text)
    return (0, len(text)) if 9 <= digits <= 15 else None


_LOCAL = 65
"""Characters before an @ that are looked at."""
_ASCII_LOWER = {letter: letter + 32 for letter in range(ord("A"), ord("Z") + 1)}
_DIGITS = re.compile(r"\d(?:[ -]?\d){12}")
_ACCOUNT = re.compile(r"[A-Za-z]{2}\d\d[ -]?[A-Za-z0-9]")
_ADDRESS = re.compile(r"\d\.\d{1,3}\.\d")
_LONG_ADDRESS = re.compile(r":[0-9A-Fa-f]{0,4}:")
_TOKEN_HEAD = re.compile(r"\beyJ(?=[A-Za-z0-9_-]{10})")
# Without a digit it may be a word with hyphens. Only so far is looked ahead, because a run of words
# with hyphens has as many beginnings of keys as its writer likes.
_HYPHENED = r"(?:(?=[A-Za-z0-9_-]{0,64}\d)[A-Za-z0-9_-]{16,}|(?:ant-|proj-)?[A-Za-z0-9]{20,})"
_ASSIGNED = r"\\?[\"']?\s*[=:]\s*\\?[\"']?[^\s\"',;}\\]{6,}"

KEY_FORMS = (
    ("-----BEGIN ", r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*KEY-----|\Z)"),
    *((word, rf"\b{word}{_HYPHENED}") for word in ("sk-", "pk-", "rk-")),
    ("sk_", r"\bsk_(?:live|test)_[A-Za-z0-9]{16,}"),
    *((word, rf"\b{word}[0-9A-Z]{{16}}\b") for word in ("AKIA", "ASIA")),
    ("AIza", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("gh", r"\bgh[oprsu]_[A-Za-z0-9]{30,}"),
    ("github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{30,}"),
    ("glpat-", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("xox", r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),
    *((word, rf"\b{word}[A-Za-z0-9]{{30,}}") for word in ("hf_", "gsk_", "npm_", "r8_")),
    *((word, rf"\b{word}[A-Za-z0-9_-]{{30,}}") for word in ("xai-", "nvapi-", "pypi-")),
    ("SG.", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("AGE-SECRET-KEY-", r"\bAGE-SECRET-KEY-[0-9A-Z]{50,}"),
)
"""(how a key begins, its pattern)."""
CREDENTIAL_FORMS = (
    ("://", r"://([^/\s:@]+:[^/\s:@]+)(?=@)"),
    ("bearer ", r"bearer ([A-Za-z0-9._~+/=-]{16,})"),
    *((word, f"{word}{_ASSIGNED}") for word in ("password", "passwd")),
    *(
        (f"{first}{mark}{last}", f"{first}{mark}{last}{_ASSIGNED}")
        for first, last in (
            ("api", "key"),
            ("secret", "key"),
            ("access", "key"),
            ("client", "secret"),
            ("access", "token"),
            ("auth", "token"),
            ("refresh", "token"),
        )
        for mark in ("_", "-", "")
    ),
)
"""(what stands before a credential, the pattern of both)."""

DETECTORS = (
    Detector(KEY, after_words(KEY_FORMS)),
    Detector(
        KEY,
        # each run of letters is read from its beginning, once
        matches(
            re.compile(
                r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{13,}+"
                r"\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]++"
            ),
            lambda text: ".eyJ" in text,
            web_token,
        ),
    ),
    Detector(CREDENTIAL, after_words(CREDENTIAL_FORMS, ignore_case=True)),
    Detector(
        IBAN,
        matches(
            re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d\d(?:[ -]?[A-Za-z0-9]){11,30}"),
            _ACCOUNT.search,
            account_number,
        ),
    ),
    Detector(
        CARD,
        matches(
            re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,30}(?![\w-])"), _DIGITS.search, card_number
        ),
    ),
    Detector(
        EMAIL,
        around_at_sign(
            re.compile(r"\b[\w.+-]{1,64}\Z"),
            re.compile(r"(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"),
        ),
    ),
    Detector(
        PHONE,
        matches(
            re.compile(r"(?<![\w.+-])\+\d(?:\)?[ ./-]?\(?\d){8,14}(?!\w)"),
            lambda text: "+" in text,
            phone_number,
        ),
    ),
    Detector(
        IP_ADDRESS,
        matches(
            re.compile(
                r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"
                r"|(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:.])"
            ),
            lambda text: _ADDRESS.search(text) or _LONG_ADDRESS.search(text),
            public_address,
        ),
    ),
)
"""Secrets first, because an address may be a part of one. Every pattern takes a time that grows as
the text does (tests/attacks): what is repeated without a bound is read from one place only."""
