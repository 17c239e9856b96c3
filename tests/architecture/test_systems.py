"""The systems that Thumbwheel replaces are plugins: outside of their packages no source file names
one of them, its agents or its tools."""

from __future__ import annotations

import re
from pathlib import Path

from thumbwheel.compat.variants import VARIANTS
from thumbwheel.core.plugins import VariantTable

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "thumbwheel"
SYSTEMS = re.compile(
    r"isaa|flow_?agent|toolboxv2|\bn3\b|\bocd\b|command_?center|rlhf_?plan|echoes|namel3ss",
    re.IGNORECASE,
)
AGENTS = re.compile(r"\b(FILER|LIBRARIAN|PRIORITIZER|STORER|RETRIEVER|GUARDRAIL)\b")
TOOLS = re.compile(
    "internal_reasoning|internal_task_stack|llm_tool_node|outline_step", re.IGNORECASE
)
RECORDER = SOURCE / "sdk"
"""It records the tools of that agent by name. It runs in the agent's own process and imports
nothing of ours, so no plugin can tell it their names."""


def outside() -> list[Path]:
    """Every source file that is in no system's package."""
    packages = [SOURCE / "compat", SOURCE / "demo"]
    files = SOURCE.rglob("*.py")
    return [path for path in files if not any(map(path.is_relative_to, packages))]


def lines_with(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    matches = []
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if pattern.search(line):
                matches.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return matches


def test_no_system_is_named_outside_of_its_package() -> None:
    assert lines_with(SYSTEMS, outside()) == []


def test_no_agent_of_a_system_is_named_outside_of_its_package() -> None:
    assert lines_with(AGENTS, outside()) == []


def test_no_tool_of_a_system_is_named_but_where_it_is_recorded() -> None:
    files = [path for path in outside() if not path.is_relative_to(RECORDER)]
    assert lines_with(TOOLS, files) == []


def test_every_variant_of_the_systems_is_in_a_table_and_can_be_loaded() -> None:
    for group, variants in VARIANTS.items():
        table: VariantTable[object] = VariantTable("variant", group, {})
        for name in variants:
            assert table.get(name) is not None
            assert f'"{group}"' in "".join(path.read_text() for path in outside()), group
