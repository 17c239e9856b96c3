"""Schemas of answers of a few hundred bytes whose grammar takes gigabytes: whoever may call a model
sends them to the process that holds the models of all agents of a base."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import tiny_base
from thumbwheel.core import child
from thumbwheel.core.errors import InputError
from thumbwheel.deploy import grammar_trial
from thumbwheel.deploy.constraint import AnswerForm, GrammarCompiler

llguidance = pytest.importorskip("llguidance")

PATTERNS = [{"type": "string", "pattern": f".*{number}.*"} for number in range(40)]
MULTIPLES = [{"type": "integer", "multipleOf": prime} for prime in (9973, 9967, 9949, 9941)]
OBJECTS = [
    {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "pattern": f".*{number}"} for n in range(30)},
    }
    for number in range(30)
]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    """The compiler of a small model."""
    pytest.importorskip("torch")
    from thumbwheel.engine.load import load_tokenizer

    tokenizer = load_tokenizer(str(tiny_base(tmp_path_factory.mktemp("models") / "base")))
    return GrammarCompiler(tokenizer, len(tokenizer), [0])


@pytest.mark.parametrize("parts", [PATTERNS, MULTIPLES, OBJECTS])
def test_no_schema_takes_the_memory_of_the_models(
    parts: list[dict[str, Any]],
    compiler: GrammarCompiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []
    original = llguidance.LLMatcher

    class Matcher:
        """Remembers what this process compiles."""

        grammar_from_json_schema = original.grammar_from_json_schema

        def __new__(cls, tokens: Any, grammar: str, **options: Any) -> Any:
            compiled.append(grammar)
            return original(tokens, grammar, **options)

    monkeypatch.setattr(llguidance, "LLMatcher", Matcher)
    with pytest.raises(InputError, match="compiling it takes more than"):
        compiler.compile(AnswerForm(({"allOf": parts},)))
    assert not compiled
    # the next one is tried in a fresh process
    assert compiler.compile(AnswerForm(({"type": "string"},)))
    assert len(compiled) == 1


def test_no_schema_is_compiled_for_long(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> Any:
        assert "grammar" in json.loads(line) and seconds == grammar_trial.SECONDS
        raise TimeoutError

    grammar_trial.TRIAL.close()
    with monkeypatch.context() as patch:
        patch.setattr(child, "ask", never)
        with pytest.raises(InputError, match="more than 3 seconds"):
            compiler.compile(AnswerForm(({"type": "string"},)))
    assert compiler.compile(AnswerForm(({"type": "string"},)))


def test_what_cannot_be_a_grammar_is_said_as_before(compiler: GrammarCompiler) -> None:
    repeated: dict[str, Any] = {"type": "string", "pattern": r"^(a)\1$"}
    with pytest.raises(InputError, match="backreferences are not supported"):
        compiler.compile(AnswerForm((repeated,)))


def test_the_child_is_for_no_module_of_the_working_folder(
    compiler: GrammarCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llguidance.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    grammar_trial.TRIAL.close()
    assert compiler.compile(AnswerForm(({"type": "string"},)))
