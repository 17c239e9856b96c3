"""Checks the import contracts of pyproject.toml with the modules of all our distributions, of which
`lint-imports` sees only the first: `python -m tests.import_contracts`."""

from __future__ import annotations

from importlinter.cli import lint_imports_command

import thumbwheel.compat  # noqa: F401 - without it no contract sees these modules

if __name__ == "__main__":
    lint_imports_command()
