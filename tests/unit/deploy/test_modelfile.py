"""Modelfiles that say what was meant: read back by a strict reader of the format, with texts that
try to break out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.public_data import public_data
from thumbwheel.core.errors import InputError
from thumbwheel.deploy.modelfile import Modelfile, quoted

COMMANDS = {
    "from",
    "license",
    "template",
    "system",
    "adapter",
    "parameter",
    "message",
    "renderer",
    "parser",
    "requires",
}


def read(text: str) -> list[tuple[str, str]]:
    """(command or parameter name, value) as Ollama's own parser reads them: a value ends at the
    first line end where it is whole."""
    commands, lines = [], text.splitlines(keepends=True)
    while lines:
        line = lines.pop(0)
        if not line.strip() or line.startswith("#"):
            continue
        name, _, value = line.lstrip().partition(" ")
        if name.lower() not in COMMANDS:
            raise ValueError(f"no command: {line!r}")
        if name.lower() == "parameter":
            name, _, value = value.lstrip().partition(" ")
        while (whole := unquoted(value.strip())) is None:
            if not lines:
                raise ValueError("the file ends within a value")
            value += lines.pop(0)
        commands.append(
            (
                name.lower(),
                "".join(
                    character
                    for character in whole
                    if character.isprintable() or character in "\t\r\n"
                ),
            )
        )
    return commands


def unquoted(text: str) -> str | None:
    for quote in ('"""', '"'):
        if text.startswith(quote):
            return (
                text[len(quote) : -len(quote)]
                if len(text) >= 2 * len(quote) and text.endswith(quote)
                else None
            )
    return text


def test_every_part_reads_back() -> None:
    modelfile = Modelfile(
        "/models/a b.gguf",
        adapter="/models/adapter.gguf",
        template='{{ range .Messages }}{{ if eq .Role "user" }}<|im_start|>\n{{ .Content }}{{ end '
        "}}{{ "
        "end }}\n",
        system='You say """hello""" to "everyone".\nPARAMETER num_ctx 1',
        parameters={"num_ctx": 4096, "temperature": 0.7, "stop": ("<|im_end|>", "\n\nUser:", '"')},
    )
    assert read(modelfile.text()) == [
        ("from", modelfile.base),
        ("adapter", modelfile.adapter),
        ("template", modelfile.template),
        ("system", modelfile.system),
        ("num_ctx", "4096"),
        ("temperature", "0.7"),
        *(("stop", text) for text in ("<|im_end|>", "\n\nUser:", '"')),
    ]
    assert modelfile.fields()["system"] == modelfile.system


@pytest.mark.parametrize(
    "text", ['a """\nFROM evil', '"""\n"""', 'x"""  \t\nPARAMETER stop y', 'a """\r\nFROM evil']
)
def test_quotes_at_the_end_of_a_line_cannot_break_out(text: str) -> None:
    with pytest.raises(InputError, match="ends with quotes"):
        Modelfile("base", system=text).text()


@pytest.mark.parametrize(
    ("text", "code"), [("a\u00a0b", "U+00A0"), ("👩\u200d🔬", "U+200D"), ("a\x00b", "U+0000")]
)
def test_characters_that_its_readers_drop_are_refused(text: str, code: str) -> None:
    with pytest.raises(InputError, match=code.replace("+", r"\+")):
        Modelfile("base", system=text).text()


@given(st.text(alphabet=st.sampled_from(' "a\n\t\rF#'), min_size=1, max_size=12))
def test_a_text_reads_back_whole_or_is_refused(text: str) -> None:
    try:
        value = quoted("SYSTEM", text)
    except InputError:
        return
    assert read(f"FROM x\nSYSTEM {value}\nPARAMETER stop z\n") == [
        ("from", "x"),
        ("system", text),
        ("stop", "z"),
    ]


def test_what_a_plain_text_needs_no_quotes_for() -> None:
    assert [quoted("SYSTEM", text) for text in ("Be brief.", "two\nlines", ' "')] == [
        "Be brief.",
        '"""two\nlines"""',
        '""" """"',
    ]


def test_a_parameter_name_cannot_carry_a_line() -> None:
    with pytest.raises(InputError, match="letters, digits"):
        Modelfile("base", parameters={"num_ctx 1\nFROM": 2}).text()


def test_the_snippets_of_the_documentation_read_and_write_back() -> None:
    for line in public_data("ollama/modelfile-snippets.jsonl").read_text().splitlines():
        for name, value in read(json.loads(line)["text"]):
            assert read(
                f"{'PARAMETER ' * (name not in COMMANDS)}{name} {quoted(name, value)}\n"
            ) == [(name, value)]
