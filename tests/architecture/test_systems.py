"""The systems that Thumbwheel replaces are plugins: outside of their packages no source file names
one of them, its agents or its tools."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.distributions import COMPAT, ROOT
from thumbwheel.core.plugins import VARIANTS_OF_EXTRAS, VariantTable

SOURCE = ROOT / "src" / "thumbwheel"
SYSTEMS = re.compile(
    r"isaa|flow_?agent|toolboxv2|\bn3\b|\bocd\b|command_?center|rlhf_?plan|echoes|namel3ss",
    re.IGNORECASE,
)
AGENTS = re.compile(r"\b(FILER|LIBRARIAN|PRIORITIZER|STORER|RETRIEVER|GUARDRAIL)\b")
TOOLS = re.compile(
    "internal_reasoning|internal_task_stack|llm_tool_node|outline_step", re.IGNORECASE
)
ENTRY_POINTS = tomllib.loads((ROOT / COMPAT / "pyproject.toml").read_text())["project"][
    "entry-points"
]


def outside() -> list[Path]:
    """Every source file of the core."""
    return [path for path in SOURCE.rglob("*.py") if not path.is_relative_to(SOURCE / "demo")]


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


def test_no_tool_of_a_system_is_named_outside_of_its_package() -> None:
    assert lines_with(TOOLS, outside()) == []


def test_every_variant_of_the_systems_is_in_a_table_and_can_be_loaded() -> None:
    for group, variants in ENTRY_POINTS.items():
        table: VariantTable[object] = VariantTable("variant", group, {})
        for name in variants:
            assert table.get(name) is not None
            assert f'"{group}"' in "".join(path.read_text() for path in outside()), group


def test_the_core_knows_which_variants_come_with_the_extra() -> None:
    """It tells people which extra to install, without naming a variant in its code."""
    listed = tomllib.loads(VARIANTS_OF_EXTRAS.read_text())["compat"]
    assert listed == {group: sorted(names) for group, names in sorted(ENTRY_POINTS.items())}


def test_both_distributions_have_the_same_version() -> None:
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    compat = tomllib.loads((ROOT / COMPAT / "pyproject.toml").read_text())["project"]
    assert compat["version"] == core["version"]
    assert compat["dependencies"] == [f"thumbwheel=={core['version']}"]
    assert core["optional-dependencies"]["compat"] == [f"thumbwheel-compat=={core['version']}"]
