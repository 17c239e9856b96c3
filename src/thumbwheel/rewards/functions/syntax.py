"""`syntax`: the code blocks of an answer are code: Python and JSON by their own parsers, other
languages through tree-sitter.

The value is the share of the blocks that parse. A block without a language, or in one that nothing
here parses, does not count; an answer without any block that counts is not applicable. To add a
language: a line in GRAMMARS and its package in the extra `syntax`.
"""

from __future__ import annotations

import json
import warnings
from importlib import import_module
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.core.errors import MissingExtra
from thumbwheel.core.python_source import parse_module
from thumbwheel.rewards.fences import blocks
from thumbwheel.rewards.function import DEEPEST_JSON, Case, JudgementStatus, RewardFunction, Score

PYTHON = frozenset({"python", "py", "python3"})
JSON = frozenset({"json"})
GRAMMARS = {
    "bash": ("tree_sitter_bash", "language", ("bash", "sh", "shell")),
    "c": ("tree_sitter_c", "language", ("c", "h")),
    "c++": ("tree_sitter_cpp", "language", ("cpp", "c++", "cc", "hpp")),
    "css": ("tree_sitter_css", "language", ("css",)),
    "go": ("tree_sitter_go", "language", ("go", "golang")),
    "html": ("tree_sitter_html", "language", ("html",)),
    "java": ("tree_sitter_java", "language", ("java",)),
    "javascript": ("tree_sitter_javascript", "language", ("javascript", "js", "jsx", "mjs")),
    "rust": ("tree_sitter_rust", "language", ("rust", "rs")),
    "tsx": ("tree_sitter_typescript", "language_tsx", ("tsx",)),
    "typescript": ("tree_sitter_typescript", "language_typescript", ("typescript", "ts")),
}
"""Language -> the module of its grammar, the function in it, and what stands after a fence."""

NAMED = {tag: language for language, (_, _, tags) in GRAMMARS.items() for tag in tags}
LONGEST_BLOCK = 100_000


class SyntaxConfig(Config):
    """Settings of `syntax`."""

    whole: str | None = None
    """The whole answer, and not its blocks, is code of this language: "python", "json", "go"."""
    languages: tuple[str, ...] | None = None
    """Only blocks in these languages count, as they stand after the fence [default: all that can be
    parsed]."""


class Syntax(RewardFunction[SyntaxConfig]):
    Config = SyntaxConfig
    case_settings = frozenset({"languages", "whole"})
    reads = frozenset({"text"})

    def judge(self, case: Case) -> Score:
        """Return the share of the blocks that parse; evidence: the problems of the others."""
        blocks_of_answer = (
            [(self.config.whole, case.text)]
            if self.config.whole
            else [(block.language, block.code) for block in blocks(case.text)]
        )
        counted = [
            (language, code) for language, code in blocks_of_answer if self._counts(language)
        ]
        if not counted:
            return Score.none(
                JudgementStatus.NOT_APPLICABLE,
                "the answer has no block in a language that is parsed here",
            )
        problems = [(language, problem(language, code)) for language, code in counted]
        wrong = [
            {"language": language, "problem": text}
            for language, text in problems
            if text is not None
        ]
        return Score(
            1 - len(wrong) / len(counted),
            evidence={"blocks": len(counted), "wrong": wrong[:10]},
            well_formed=not wrong,
        )

    def _counts(self, language: str) -> bool:
        allowed = self.config.languages
        return (language in PYTHON | JSON or language in NAMED) and (
            allowed is None or language in allowed
        )


def problem(language: str, code: str) -> str | None:
    """Return the problem with the code, or None if it parses."""
    if len(code) > LONGEST_BLOCK:
        return f"a block of {len(code)} characters; at most {LONGEST_BLOCK} are parsed"
    if language in PYTHON:
        return _python(code)
    return _json(code) if language in JSON else _other(NAMED[language], code)


def _python(code: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            parse_module(code)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, MemoryError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _json(code: str) -> str | None:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        json.loads(code, parse_constant=refuse, parse_int=str, parse_float=str)
    except RecursionError:
        return f"nested deeper than this parser goes (more than {DEEPEST_JSON})"
    except ValueError as error:
        return str(error)
    return None


def _other(language: str, code: str) -> str | None:
    module, function, _ = GRAMMARS[language]
    try:
        tree_sitter, grammar = import_module("tree_sitter"), import_module(module)
    except ImportError as error:
        raise MissingExtra.of(
            f"reward function 'syntax' for {language}", error.name or module, "syntax"
        ) from None
    parser = tree_sitter.Parser(tree_sitter.Language(getattr(grammar, function)()))
    root = parser.parse(code.encode(errors="surrogatepass")).root_node
    if not root.has_error:
        return None
    node = root
    while (
        inner := next(
            (child for child in node.children if child.has_error or child.is_missing), None
        )
    ) is not None:
        node = inner
    return (
        f"line {node.start_point[0] + 1}: "
        f"{'something is missing' if node.is_missing else 'not ' + language}"
    )
