"""Lists without rows say what to do next, on every list command there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.command_line import Run
from thumbwheel.app.command_table import leaves
from thumbwheel.cli.main import command_line as whole_command_line

pytestmark = pytest.mark.slow

OTHERS = ("deployments", "loop decisions", "loop quarantines", "notify channels")
"""Lists that are not called so."""
ALWAYS_FULL = ("tools list", "reward list", "audit list")
"""Lists of what is always there, and the audit log, in which the making of the home stands."""


OF_THE_HOME = ("secrets", "jobs", "schedule", "keys", "users")
"""Groups whose lists belong to no agent."""
AGENT = ["--agent", "support"]


def lists() -> list[str]:
    named = [path for path, _ in leaves(whole_command_line()) if path.endswith(" list")]
    return [path for path in (*named, *OTHERS) if path not in ALWAYS_FULL]


def test_an_empty_list_says_what_to_do_next(command_line: Run, tmp_path: Path) -> None:
    trace = {"type": "trace", "id": "t", "input": "a", "output": "b"}
    (tmp_path / "one.jsonl").write_text(json.dumps(trace))
    assert command_line("import", "jsonl", "one.jsonl", "--agent", "support")[0] == 0
    for path in lists():
        whose = [] if path.split()[0] in OF_THE_HOME or path == "notify channels" else AGENT
        if path == "traces list":
            whose = [*AGENT, "--text", "nothing has this word"]
        code, out, err = command_line(*path.split(), *whose)
        assert code == 0 and out == "", f"{path}: {out}"
        assert re.search(r"(thumbwheel [a-z]+|thumbwheel\.yaml)", err), f"{path}: {err!r}"
