"""Write the snapshots anew."""

from __future__ import annotations

from tests.surface import (
    COMMANDS,
    OPERATIONS,
    command_lines,
    document,
    operation_lines,
    text_of,
)

COMMANDS.write_text(text_of(command_lines()), encoding="utf-8")
OPERATIONS.write_text(text_of(operation_lines(document())), encoding="utf-8")
