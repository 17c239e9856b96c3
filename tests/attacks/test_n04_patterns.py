"""N4: no text from outside makes a search take a time that grows faster than the text does.

300 KB of `sk-sk-sk-...` stopped a server whose redaction was on. Every regular expression of the
sources is found and searched with texts that it nearly matches, in the way in which the sources use
it; so is everything that redaction does, in each of its modes.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import thumbwheel
from tests.attacks.near_misses import ENDINGS, assert_linear, near_misses, stopped_after
from tests.distributions import ROOT, module_of, source_files
from thumbwheel.capture.redact import LOOSE, CaptureConfig, Redactor
from thumbwheel.core.errors import InputError
from thumbwheel.core.normal_form import normal_form
from thumbwheel.core.seal import Seal
from thumbwheel.deploy import processes
from thumbwheel.gateway.request_body import with_fields
from thumbwheel.importers.json_text import json_value
from thumbwheel.rewards import next_turn
from thumbwheel.rewards.calls import calls_of_text
from thumbwheel.rewards.json_answer import depth
from thumbwheel.sdk import detectors
from thumbwheel.sdk.redact import redacted
from thumbwheel.server.pages.rendering import excerpt

SHORT, LONG = 16_384, 262_144
"""Characters of the longest near miss."""
SIZE = 300_000
BOUND = 3.0
"""Seconds of processor time for SIZE characters; no search takes a tenth of it."""
CORE = Path(thumbwheel.__file__).parent
NOT_FROM_OUTSIDE = {
    "thumbwheel.llm.install": "reads the output and the archive of a pinned build",
    "thumbwheel.sandbox.cgroup": "reads files of the kernel",
    "thumbwheel.sandbox.root_files": "reads the output of ldd",
    "thumbwheel.report.charts": "reads what matplotlib drew",
    "thumbwheel.engine.lora": "reads names of modules of a loaded model",
    "thumbwheel.rewards.next_turn": "reads 2,000 characters; has a test of its own below",
}
"""Modules whose patterns meet no text of a client, a model or a file of others -> why."""
MOST_READ = {"thumbwheel.deploy.processes.PROBLEM": processes.MOST_OF_LOG}
"""Patterns that meet the end of a log, whatever stands in it -> its characters."""
USED_BY_ANOTHER_NAME = {
    f"thumbwheel.importers.elements.{name}": {"match"} for name in ("_INSIDE", "_BETWEEN", "_DEEP")
}


@dataclass(frozen=True)
class Use:
    """A pattern of the sources, and how it is used there."""

    name: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]

    def search(self, text: str) -> None:
        subject: Any = text
        if isinstance(self.pattern.pattern, bytes):
            subject = text.encode("latin-1", "replace")
        for method in self.methods & {"match", "fullmatch"}:
            getattr(self.pattern, method)(subject)
        if not self.methods <= {"match", "fullmatch"} or not self.methods:
            for _ in self.pattern.finditer(subject):
                pass


def uses() -> Iterator[Use]:
    for path in source_files():
        module = str(module_of(path.relative_to(ROOT).as_posix()))
        source = path.read_text()
        if re.search(r"^import re$", source, re.MULTILINE) and module not in NOT_FROM_OUTSIDE:
            yield from _uses_of(module, ast.parse(source))


def _uses_of(module: str, tree: ast.Module) -> Iterator[Use]:
    """Yield the patterns of a module: its constants, and those written where they are used."""
    methods: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            methods.setdefault(node.value.id, set()).add(node.attr)
    names = vars(importlib.import_module(module))
    for name, value in names.items():
        if isinstance(value, re.Pattern) and name in _defined(tree):
            used = methods.get(name, set()) | USED_BY_ANOTHER_NAME.get(f"{module}.{name}", set())
            yield Use(f"{module}.{name}", value, frozenset(used))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            method = ast.unparse(node.func).removeprefix("re.")
            first = node.args[0]
            is_written = isinstance(first, ast.Constant) and isinstance(first.value, str)
            if is_written and method != "compile":
                pattern = re.compile(first.value)
                yield Use(f"{module}:{node.lineno}", pattern, frozenset({method}))


def _defined(tree: ast.Module) -> set[str]:
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


USES = list(uses())


def test_the_patterns_of_the_sources_are_found() -> None:
    names = {use.name for use in USES}
    assert len(USES) > 60
    assert "thumbwheel.importers.json_text._TEXT" in names
    assert "thumbwheel.sdk.redact.KEYS" in names


@pytest.mark.parametrize("use", USES, ids=lambda use: use.name.removeprefix("thumbwheel."))
def test_no_pattern_takes_more_than_linear_time(use: Use) -> None:
    attack(use, SHORT, most=150)


@pytest.mark.repeat
@pytest.mark.parametrize("use", USES, ids=lambda use: use.name.removeprefix("thumbwheel."))
def test_no_pattern_takes_more_than_linear_time_at_length(use: Use) -> None:
    attack(use, LONG, most=5000)


def attack(use: Use, length: int, most: int) -> None:
    length = min(length, MOST_READ.get(use.name, length))
    pattern = use.pattern.pattern
    flags = use.pattern.flags
    if isinstance(pattern, bytes):
        pattern = pattern.decode("latin-1")
    misses = near_misses(pattern, flags & ~re.UNICODE if flags & re.ASCII else flags)
    for miss in misses[:: max(len(misses) // most, 1)]:
        assert_linear(use.search, miss, length)


FORMS = [form for _, form in (*detectors.KEY_FORMS, *detectors.CREDENTIAL_FORMS)]
LITERAL_PATTERNS = [
    use
    for path in (CORE / "sdk/detectors.py", CORE / "capture/redact.py")
    for use in [
        node.args[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile" and node.args
    ]
    if isinstance(use, ast.Constant)
]
PATTERNS = [*FORMS, *(use.value for use in LITERAL_PATTERNS)]


def redactor(mode: str) -> Redactor:
    return Redactor(CaptureConfig(redaction=mode), Seal(b"s" * 32))


def redact_line(mode: str) -> Callable[[str], object]:
    def search(text: str) -> object:
        line = {"agent": "a", "type": "trace", "id": "t", "session": text, "output": text}
        return redactor(mode).line({**line, "metadata": {"note": text}})

    return search


SEARCHES: dict[str, Callable[[str], object]] = {
    "detectors": lambda text: list(detectors.find(text, (*detectors.KINDS, detectors.CREDENTIAL))),
    "loose detectors": lambda text: [list(detector.spans(text)) for detector in LOOSE],
    "recorder": lambda text: redacted({"text": text, text[:100]: 1}),
    "on": redact_line("on"),
    "strict": redact_line("strict"),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_no_search_of_redaction_takes_more_than_linear_time(name: str) -> None:
    for pattern in dict.fromkeys(PATTERNS):
        misses = near_misses(pattern)
        for miss in misses[:: max(len(misses) // 4, 1)]:
            assert_linear(SEARCHES[name], miss, 4_096)


@pytest.mark.repeat
@pytest.mark.parametrize("name", SEARCHES)
def test_no_search_of_redaction_takes_more_than_linear_time_at_length(name: str) -> None:
    # all misses of each pattern alone are searched above; here is what the searches do together
    for pattern in dict.fromkeys(PATTERNS):
        misses = near_misses(pattern)
        stride = max(len(misses) // 40, 1)
        if stride % len(ENDINGS) == 0:
            stride += 1  # or all of them would end alike
        for miss in misses[::stride]:
            assert_linear(SEARCHES[name], miss, 65_536)


HOSTILE = {
    "beginnings of keys": "sk-" * (SIZE // 3),
    "beginnings of tokens": "-eyJaaaaaaaaaa" * (SIZE // 14),
    "digits of another script": "٠" * SIZE,
    "groups of digits": "4 " * (SIZE // 2),
    "country codes": ("+" + "1" * 33 + "x") * (SIZE // 35),
    "marks that have to be sorted": "a" + "\u0301\u0316" * (SIZE // 2),
    "vowels that come apart": "a" + "\u0f73" * (SIZE // 4),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("name", SEARCHES)
def test_a_hostile_text_of_300_kb_is_searched_at_once(name: str, text: str) -> None:
    with stopped_after(5 * BOUND, name):
        SEARCHES[name](text)


def test_many_encoded_addresses_are_taken_out_in_one_pass() -> None:
    runs = [f"anna{number:05}@example.org".encode().hex() for number in range(6000)]
    with stopped_after(BOUND, "encoded addresses"):
        clean = redactor("strict").line(line_of(" ".join(runs)))
    assert clean["metadata"]["redacted"] == {"encoded": 6000}


def line_of(output: str, **fields: Any) -> dict[str, Any]:
    return {"agent": "a", "type": "trace", "id": "t", "output": output, **fields}


@pytest.mark.parametrize("mode", ["on", "strict", "recorder"])
def test_many_secrets_are_not_looked_for_one_by_one(mode: str) -> None:
    """A text beside more secrets than are looked for goes as a whole."""
    secrets = [f"aaaaaaaaaaaaaaaaaaaa{number:06}" for number in range(10_000)]
    line = line_of("a" * SIZE + secrets[-1], metadata={"secrets": secrets, "tokens": [secrets]})
    with stopped_after(BOUND, "secrets"):
        clean = redacted(line) if mode == "recorder" else redactor(mode).line(line)
    assert secrets[-1] not in json.dumps(clean)


def test_two_long_secrets_that_are_nearly_there() -> None:
    long = "a" * (SIZE // 4)
    with stopped_after(BOUND, "long secrets"):
        redacted({"secrets": [f"{long}b", f"{long}c"], "text": long * 2})


UNCLOSED = {
    "JSON of a request": lambda text: refused(ValueError, json_value, text.encode()),
    "a body with another model": lambda text: refused(
        InputError, with_fields, text.encode(), {"model": "m"}
    ),
    "JSON of an answer": depth,
    "calls of an answer": calls_of_text,
}


def refused(error: type[Exception], function: Callable[..., object], *arguments: Any) -> None:
    with pytest.raises(error):
        function(*arguments)


@pytest.mark.parametrize("name", UNCLOSED)
@pytest.mark.parametrize(
    "text", ['{"' + '\\",' * 100_000, "<tool_call>" * 20_000, "f('" + "\\'" * 9_000]
)
def test_a_text_that_never_ends_is_read_once(name: str, text: str) -> None:
    with stopped_after(BOUND, name):
        UNCLOSED[name](text)


def test_a_tag_that_is_never_closed_hides_no_other() -> None:
    calls = calls_of_text('<tool>x <tool_call>{"name": "f", "arguments": {}}</tool_call>')
    assert calls is not None
    assert [call.name for call in calls] == ["f"]


@pytest.mark.parametrize("name", ["THANKS", "NO_THANKS", "COMPLAINT", "CORRECTION", "REPHRASE"])
def test_the_next_turn_is_read_in_a_bounded_time(name: str) -> None:
    pattern: re.Pattern[str] = getattr(next_turn, name)
    misses = near_misses(pattern.pattern)
    for beginning, body, ending in misses[:: max(len(misses) // 100, 1)]:
        text = (beginning + body * next_turn.LONGEST + ending)[: next_turn.LONGEST]
        with stopped_after(BOUND, f"{name}: {text[:60]!r}"):
            next_turn.read_next_turn("Where is it?", text)


def test_a_page_marks_a_needle_in_a_long_text() -> None:
    with stopped_after(BOUND, "excerpt"):
        excerpt("a" * 1_500_000, 100, "a" * 2_000 + "b")


def test_a_letter_with_many_marks_has_a_normal_form() -> None:
    with stopped_after(BOUND, "normal form"):
        normal_form("NFKC", "a" + "\u0301\u0316" * 100_000)
