"""A pytest plugin for the fast lane: whatever imports torch is left out, and nothing loads it.

`make test-fast` runs `pytest -p tests.without_torch`. An import of torch in the process of the
tests skips the test, or the module, that asked for it; no list says which these are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

import pytest

HEAVY = frozenset({"torch", "transformers", "peft", "trl", "accelerate"})


class SkipsWhatIsHeavy(MetaPathFinder):
    """Skips the running test where it imports one of HEAVY."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name in HEAVY:
            pytest.skip(f"the fast lane has no {name}", allow_module_level=True)


sys.meta_path.insert(0, SkipsWhatIsHeavy())
