"""A client in TypeScript, with the types that openapi-typescript makes of the API's document,
compiles under `strict`: the document names every field that it reads."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.required import missing
from tests.surface import document

SOURCE = Path(__file__).parents[1] / "typescript"


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the folder."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_strict_client_compiles_against_the_document(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        missing(
            "peers", "npm is not here: typescript cannot be installed from the index of packages"
        )
    folder = tmp_path / "client"
    shutil.copytree(SOURCE, folder)
    installed = run(folder, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts")
    if installed.returncode:
        missing("peers", "typescript cannot be installed from the index of packages")
    (folder / "openapi.json").write_text(json.dumps(document()), encoding="utf-8")
    programs = folder / "node_modules" / ".bin"
    generated = run(folder, str(programs / "openapi-typescript"), "openapi.json", "-o", "api.ts")
    assert generated.returncode == 0, generated.stderr[-4000:]
    compiled = run(folder, str(programs / "tsc"), "-p", ".")
    assert compiled.returncode == 0, compiled.stdout[-4000:]
