"""Personal data and secrets are taken out of a line before it is written anywhere.

What is found becomes a mark such as `[email removed]`: in texts, in the arguments of tools, in
metadata, in errors. A reply is whole by then, so it does not matter in how many pieces it came.
Not here: how personal data looks (sdk/detectors.py), which names tell of a secret (sdk/redact.py).
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import Field, field_validator

from thumbwheel.core.config import Config
from thumbwheel.core.normal_form import normal_form
from thumbwheel.core.seal import Seal, make_seal
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk.detectors import (
    CARD,
    CREDENTIAL,
    DETECTORS,
    EMAIL,
    IP_ADDRESS,
    KEY,
    PHONE,
    Detector,
    around_at_sign,
    card_number,
    matches,
    phone_number,
    without,
)
from thumbwheel.sdk.redact import (
    GONE,
    is_secret_key,
    longest_first,
    secrets_in,
    without_secrets,
)
from thumbwheel.sdk.segment import Segment

SECRET = "secret"
ENCODED = "encoded"
"""The kind of a text that holds one of the others in another spelling."""
NAMES = frozenset(
    {
        "id",
        "session",
        "subject",
        "parent",
        "case",
        "rater",
        "target",
        "targets",
        "supersedes",
        "retracts",
    }
)
"""Keys of a line whose values are names by which rows are linked and erased."""
LENGTHS = {"name": 512, "model": 512, "served_model": 512, "finish_reason": 32, "error": 2000}
"""Characters that an import takes of these values of a step; a mark may be longer than what it
stands for."""
OURS = frozenset(
    {
        "agent",
        "type",
        "kind",
        "occurred_at",
        "received_at",
        "status",
        "started_at",
        "ended_at",
        "first_token_at",
        "complete",
        "model_version",
        "deployment",
        "routing",
        "tokens",
        "cost",
        "token_ids",
        "token_logprobs",
    }
)
"""Keys of a line or step whose values are no words of a client or a model."""
TOKENS = ("token_ids", "token_logprobs")

LOOSE = (
    Detector(
        CARD,
        matches(
            re.compile(r"(?<!\d)\d(?:[^\dA-Za-z]{0,3}\d){12,30}(?!\d)"),
            lambda text: True,
            card_number,
        ),
    ),
    Detector(
        EMAIL,
        around_at_sign(
            re.compile(r"[^\s@<>\"'(),:;]{1,64}\s?\Z"),
            re.compile(r"\s?(?:[^\s@<>\"'(),:;.]{1,63}\.){1,8}[^\W\d_]{2,24}"),
        ),
    ),
    Detector(
        PHONE,
        matches(
            re.compile(r"(?<![\w.-])(?:0\d{1,4}|\(\d{2,5}\))[ /.-]?\d[\d /.-]{4,}\d(?!\w)"),
            lambda text: "0" in text or "(" in text,
            phone_number,
        ),
    ),
)
"""Spellings that are as likely as not something else; only `strict` looks for them."""

_MEMO = 50_000
"""Texts that are remembered to hold nothing: a conversation repeats all it had in every call."""
_MEMO_FROM = 200
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_JSON_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})")
_HASHED = re.compile(r"hash-[0-9a-f]{32}")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}={0,2}")
_HEX = re.compile(r"(?<![0-9A-Fa-f])(?:[0-9A-Fa-f]{2}){10,}(?![0-9A-Fa-f])")
_LARGEST_PLAIN = 10**12
"""Numbers below have too few digits to be those of a card."""

Mode = Literal["off", "on", "strict"]


class CaptureConfig(Config):
    """What is taken out of recorded calls before they are written, and when what comes over HTTP is
    acknowledged."""

    redaction: Mode = "off"
    """`on` takes out mail addresses, phone, card and bank account numbers, API keys and passwords,
    each in its usual spelling. `strict` also looks for unusual spellings, takes out texts that
    hold such data in another encoding, and replaces ids that hold it by a keyed hash."""
    ip_addresses: bool = False
    """Whether addresses of the public internet count as personal data too; `strict` always takes
    them out."""
    acknowledge: Literal["spool", "rows"] = "spool"
    """`spool`: traces and feedback are acknowledged once they are on this host's disk. `rows`: once
    the database has them, so that nothing acknowledged is lost with the host; an uploaded file is
    answered when its import has ended."""
    spool_gb: float = Field(default=10.0, gt=0)
    """Gigabytes that may wait to become rows, as while the database is away. Beyond them requests
    are answered with 429, and calls are answered and not recorded."""

    @field_validator("redaction", mode="before")
    @classmethod
    def _yaml_word(cls, value: Any) -> Any:
        # YAML reads the words off and on as truth values
        return {False: "off", True: "on"}[value] if isinstance(value, bool) else value


def hashed_name(seal: Seal, name: str) -> str:
    """Return the replacement of an id, session or subject that contains personal data: its keyed
    hash."""
    return f"hash-{seal.of('redacted name', name)[:32]}"


class Redactor:
    """Takes personal data and secrets out of lines. Safe for threads."""

    @classmethod
    def of_home(cls, ws: Workspace) -> Redactor:
        """Return a redactor with the settings of the home. Hashes made by `strict` can be
        recognised in this home only."""
        config = ws.settings(CaptureConfig, "capture")
        return cls(config, make_seal(ws.home.secret) if config.redaction == "strict" else Seal(b""))

    def __init__(self, config: CaptureConfig, seal: Seal) -> None:
        self.mode = config.redaction
        self.is_strict = config.redaction == "strict"
        self._seal = seal
        looks_for_addresses = config.ip_addresses or self.is_strict
        detectors = [
            detector for detector in DETECTORS if looks_for_addresses or detector.kind != IP_ADDRESS
        ]
        self.detectors = (*detectors, *LOOSE) if self.is_strict else tuple(detectors)
        self._harmless: dict[bytes, None] = {}

    def line(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `line` without personal data and secrets. Its metadata then counts, by kind, what
        was removed, under `redacted`."""
        return line if self.mode == "off" else _LineSearch(self, line).clean()

    def name(self, name: str) -> str:
        """Return an id, session or subject after redaction. `on` keeps it, because rows are linked
        and erased by it; `strict` replaces one that contains personal data by its keyed hash, which
        is the same each time."""
        if not self.is_strict or _HASHED.fullmatch(name):
            return name
        readings = [name, *_readings(name), *_decoded_runs(name)]
        if not any(map(self.holds, readings)):
            return name
        return hashed_name(self._seal, name)

    def holds(self, text: str) -> bool:
        """Return whether a detector finds something in `text`, without decoding it."""
        return any(next(detector.spans(text), None) for detector in self.detectors)

    def is_harmless(self, text: str, search: Callable[[str], str]) -> bool:
        """Return whether `search` leaves a long text unchanged; remember texts for which it
        does."""
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._harmless:
            return True
        if search(text) != text:
            return False
        if len(self._harmless) >= _MEMO:
            self._harmless.clear()
        self._harmless[digest] = None
        return True


class RedactedSegment(Segment):
    """A segment of the inbox into which no line gets unredacted."""

    def __init__(self, inbox: Path, redactor: Redactor) -> None:
        super().__init__(inbox)
        self._redactor = redactor
        self._redacted = Segment(inbox)
        """Gets lines that are redacted already."""

    def append_large(self, lines: Sequence[bytes]) -> Future[None]:
        """Append lines that are stored together or not at all, after they were redacted in the
        calling thread: that may take long, and those of others do not wait for it. Raises Full."""
        return self._redacted.append_all([self.prepared(line) for line in lines])

    def close(self) -> None:
        """Return when everything that waits is on disk, or refused by it."""
        self._redacted.close()
        super().close()

    def prepared(self, lines: bytes) -> bytes:
        """Return the lines after redaction."""
        if self._redactor.mode == "off":
            return lines
        return b"\n".join(self._written(json.loads(line)) for line in lines.split(b"\n"))

    def _written(self, line: Mapping[str, Any]) -> bytes:
        return json.dumps(self._redactor.line(line), ensure_ascii=False).encode("utf-8")


class _LineSearch:
    """The search through one line: what was counted, and what is secret in it."""

    def __init__(self, redactor: Redactor, line: Mapping[str, Any]) -> None:
        self._redactor = redactor
        self._line = line
        self._counts: Counter[str] = Counter()
        self._secrets = longest_first(_secrets_of(line))

    def clean(self) -> dict[str, Any]:
        line = self._line
        clean = {key: self._field(key, value) for key, value in line.items() if key != "steps"}
        if isinstance(line.get("steps"), list):
            clean["steps"] = self._steps(line["steps"], clean.get("output") != line.get("output"))
        if self._counts:
            metadata = clean.get("metadata") or {}
            clean["metadata"] = {**metadata, "redacted": dict(sorted(self._counts.items()))}
        return clean

    def _text(self, text: str) -> str:
        """Return `text` after redaction."""
        text, count = without_secrets(text, self._secrets)
        self._count(SECRET, count)
        if len(text) < _MEMO_FROM:
            return self._searched(text)
        counts = self._counts.copy()
        if self._redactor.is_harmless(text, self._searched):
            return text
        self._counts = counts
        return self._searched(text)

    def _field(self, key: str, value: Any) -> Any:
        if key in NAMES:
            return self._names(value)
        return value if key in OURS else self._value(value)

    def _names(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._names(part) for part in value]
        if isinstance(value, Mapping):
            return {key: self._names(part) for key, part in value.items()}
        return self._redactor.name(value) if isinstance(value, str) else value

    def _steps(self, steps: list[Any], is_answer_changed: bool) -> list[Any]:
        """Return the steps after redaction. Token ids spell the answer out, so they are removed if
        the answer was changed."""
        steps = [step for step in steps if isinstance(step, Mapping)]
        clean_steps = [
            {key: self._step_field(key, value) for key, value in step.items()} for step in steps
        ]
        for step, clean in zip(steps, clean_steps, strict=True):
            is_answer_changed |= step.get("output") != clean.get("output")
        if is_answer_changed:
            for clean in clean_steps:
                for key in TOKENS:
                    clean.pop(key, None)
        return clean_steps

    def _step_field(self, key: str, value: Any) -> Any:
        if key in OURS:
            return value
        if key in LENGTHS and isinstance(value, str):
            return self._text(value)[: LENGTHS[key]]
        if key == "input" and isinstance(value, Mapping) and "tools" in value:
            # a definition names its parameters, of which one may be a password
            rest = {name: part for name, part in value.items() if name != "tools"}
            return {**self._value(rest), "tools": self._value(value["tools"], names_tell=False)}
        return self._value(value)

    def _value(self, value: Any, *, names_tell: bool = True) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self._value(part, names_tell=names_tell) for part in value]
        if isinstance(value, Mapping):
            return self._mapping(value, names_tell)
        if isinstance(value, int) and abs(value) >= _LARGEST_PLAIN:
            text = self._searched(str(value))
            return value if text == str(value) else text
        return value

    def _mapping(self, values: Mapping[str, Any], names_tell: bool) -> dict[str, Any]:
        clean = {}
        for key, value in values.items():
            if key == "role":
                clean[key] = value
            elif names_tell and value and is_secret_key(key, values):
                self._count(SECRET)
                clean[self._text(key)] = GONE
            elif key == "arguments" and isinstance(value, str):
                clean[key] = self._arguments(value)
            elif key == "token_ids" and self._redactor.is_strict:
                # a prompt that came as tokens cannot be read
                self._count(ENCODED)
            else:
                clean[self._text(key)] = self._value(value, names_tell=names_tell)
        return clean

    def _arguments(self, text: str) -> str:
        """Return the arguments of a tool call after redaction of their JSON values, as JSON may
        write a character in several ways."""
        values = _json_of(text)
        if not isinstance(values, dict | list):
            return self._text(text)
        clean = self._value(values)
        return text if clean == values else json.dumps(clean, ensure_ascii=False)

    def _searched(self, text: str) -> str:
        for detector in self._redactor.detectors:
            text, count = without(detector, text, _mark(detector.kind))
            self._count(detector.kind, count)
        return self._decoded(text) if self._redactor.is_strict else text

    def _decoded(self, text: str) -> str:
        """Return `text`, with parts or all of it replaced if a decoded form of it contains
        something."""
        for pattern, decode in _ENCODINGS:
            text = pattern.sub(partial(self._decoded_run, decode), text)
        for reading in _readings(text):
            if self._redactor.holds(reading):
                self._count(ENCODED)
                return _mark(ENCODED)
        return text

    def _decoded_run(self, decode: Callable[[str], bytes], match: re.Match[str]) -> str:
        reading = _read_run(match[0], decode)
        if reading is None or not self._redactor.holds(reading):
            return match[0]
        self._count(ENCODED)
        return _mark(ENCODED)

    def _count(self, kind: str, count: int = 1) -> None:
        if count:
            self._counts[kind] += count


def _mark(kind: str) -> str:
    """Return the replacement for a finding of this kind."""
    return GONE if kind in (KEY, CREDENTIAL) else f"[{kind} removed]"


def _secrets_of(line: Mapping[str, Any]) -> set[str]:
    """Return the texts under a telling name anywhere in the line; they are secret everywhere in
    it."""
    secrets: set[str] = set()
    for value in _described(line):
        secrets |= secrets_in(value)
    return secrets


def _described(value: Any) -> Iterator[Any]:
    """Yield the parts of a line whose names can tell a secret: all but definitions of tools, and
    arguments as the value of their JSON."""
    if isinstance(value, Mapping):
        yield {key: part for key, part in value.items() if isinstance(part, str)}
        for key, part in value.items():
            if key == "arguments" and isinstance(part, str):
                yield _json_of(part)
            elif key != "tools":
                if is_secret_key(key, value):
                    yield {key: part}
                yield from _described(part)
    elif isinstance(value, list):
        for part in value:
            yield from _described(part)


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _readings(text: str) -> Iterator[str]:
    """Yield `text` decoded as a URL, as HTML, as JSON, and in NFKC without invisible characters, as
    far as it has any such codes."""
    if "%" in text:
        yield unquote(text)
    if "&" in text:
        yield html.unescape(text)
    if "\\u" in text:
        yield _JSON_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    if not text.isascii():
        yield _INVISIBLE.sub("", normal_form("NFKC", text))


def _decoded_runs(text: str) -> Iterator[str]:
    """Yield the texts that runs of letters and digits in `text` encode in base64 or hexadecimal."""
    for pattern, decode in _ENCODINGS:
        for run in pattern.findall(text):
            reading = _read_run(run, decode)
            if reading is not None:
                yield reading


def _read_run(run: str, decode: Callable[[str], bytes]) -> str | None:
    """Return the text of an encoded run, or None if it is not printable text."""
    try:
        reading = decode(run).decode()
    except ValueError:
        return None
    return reading if reading.isprintable() else None


def _from_base64(run: str) -> bytes:
    """Return the decoded bytes of base64 in either alphabet, with or without padding. Raises
    ValueError."""
    plain = run.rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


_ENCODINGS = ((_BASE64, _from_base64), (_HEX, bytes.fromhex))
"""(how a run of an encoding looks, how it is decoded)."""
