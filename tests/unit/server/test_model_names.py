"""Names of bases in requests: what was put there for them, and no file of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import fetch
from thumbwheel.models.known_bases import KNOWN_BASES
from thumbwheel.server.api.model_names import model_name

KNOWN = "smollm2-135m"


@pytest.fixture
def bases_ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "none", {})) as workspace:
        workspace.home.bases.mkdir()
        yield workspace


def test_a_gguf_file_of_the_home_may_be_named(bases_ws: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(b"GGUF" + bytes(20))
    (bases_ws.home.bases / "mine.gguf").symlink_to(outside)
    assert model_name(bases_ws, "base", "mine.gguf") == str(outside)
    (bases_ws.home.bases / "text.gguf").write_text("no model")
    os.mkfifo(bases_ws.home.bases / "pipe.gguf")
    for name in ("text.gguf", "pipe.gguf", "none.gguf"):
        with pytest.raises(InputError, match="over the API a base is"):
            model_name(bases_ws, "base", name)


@pytest.mark.parametrize(
    "name", ["ollama:llama3.2", "/etc/passwd", "../outside.gguf", "~/model.gguf", "./mine.gguf"]
)
def test_no_file_of_the_machine_may_be_named(name: str, bases_ws: Workspace) -> None:
    with pytest.raises(InputError, match="over the API a base is"):
        model_name(bases_ws, "base", name)


def test_a_known_base_may_be_named_once_it_was_fetched(
    bases_ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "cache_folder", lambda: tmp_path / "cache")
    with pytest.raises(InputError, match="one that was fetched"):
        model_name(bases_ws, "base", KNOWN)
    file = fetch.fetched_file(KNOWN_BASES[KNOWN])
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    assert model_name(bases_ws, "base", KNOWN) == KNOWN
