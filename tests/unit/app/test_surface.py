"""No option, route or field is renamed, added or lost without being seen: a change of what users
and clients rely on is a change of two snapshots (`python -m tests.surface`)."""

from __future__ import annotations

from tests.surface import (
    COMMANDS,
    OPERATIONS,
    command_lines,
    document,
    operation_lines,
    text_of,
)


def test_the_commands_have_the_options_of_the_snapshot() -> None:
    assert text_of(command_lines()) == COMMANDS.read_text(encoding="utf-8")


def test_the_operations_have_the_fields_of_the_snapshot() -> None:
    assert text_of(operation_lines(document())) == OPERATIONS.read_text(encoding="utf-8")
