"""Files of exports over HTTP: whole, in ranges, by their names alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from tests.worlds.api_world import commands_client
from thumbwheel.core import ids
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.export import store
from thumbwheel.export.types import Export, Parity, ParityLimits
from thumbwheel.models import versions
from thumbwheel.models.types import EndpointAddress

EXPORTS = "/api/agents/support/versions/v0/exports"
PARITY = Parity(5, 200, "F32", 1e-6, 1e-9, 1.0, 0.5, True, ParityLimits(1e-4, 0.99))
CONTENT = bytes(range(256)) * 40


@dataclass(frozen=True)
class Exported:
    client: TestClient
    export: Export

    def get(self, name: str, **headers: str) -> Response:
        path = f"{EXPORTS}/{self.export.id}/files/{name}"
        return self.client.get(path, headers=headers)


@pytest.fixture
def exported(tmp_path: Path) -> Iterator[Exported]:
    home = Home(tmp_path / "home")
    with Workspace.open(home, Sources({}, "none", {})) as ws, commands_client(ws) as client:
        folder = home.path / "exports" / "out"
        (folder / "sub").mkdir(parents=True)
        (folder / "model.gguf").write_bytes(CONTENT)
        (folder / "sub" / "a.txt").write_text("a")
        (folder / "unlisted").write_text("x")
        (folder / "link").symlink_to(home.access_token)
        files = {}
        for name in ("model.gguf", "sub/a.txt", "link"):
            content = (folder / name).read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            files[name] = {"sha256": sha256, "size": len(content)}
        version = versions.add_endpoint(ws, "support", EndpointAddress("http://127.0.0.1:9", "m"))
        export = Export(ids.new("exp"), "support", "v0", "gguf", folder, files, PARITY)
        ws.db.write(lambda connection: store.add(connection, ws.home, version, export))
        yield Exported(client, export)


def test_a_file_is_sent_whole_and_in_parts(exported: Exported) -> None:
    (row,) = exported.client.get(EXPORTS).json()
    assert (row["id"], row["format"], row["deployable"]) == (exported.export.id, "gguf", True)
    assert "path" not in row
    sha256 = row["files"]["model.gguf"]["sha256"]
    whole = exported.get("model.gguf")
    assert whole.content == CONTENT and whole.headers["etag"] == f'"{sha256}"'
    assert 'filename="model.gguf"' in whole.headers["content-disposition"]
    assert exported.get("sub/a.txt").content == b"a"
    part = exported.get("model.gguf", range="bytes=1000-", **{"if-range": f'"{sha256}"'})
    assert part.status_code == 206 and part.content == CONTENT[1000:]
    changed = exported.get("model.gguf", range="bytes=1000-", **{"if-range": '"other"'})
    assert changed.status_code == 200 and changed.content == CONTENT
    assert exported.get("model.gguf", range="bytes=99999-").status_code == 416
    broken = exported.get("model.gguf", range="bytes=x-")
    assert broken.status_code == 400


@pytest.mark.parametrize(
    "name",
    ["unlisted", "../out/model.gguf", "..%2f..%2fthumbwheel.db", "/etc/passwd", "link", "%00"],
)
def test_only_its_own_files_are_sent(exported: Exported, name: str) -> None:
    answer = exported.get(name)
    assert answer.status_code in (404, 422)
    assert exported.export.path.parent.name not in answer.headers.get("content-disposition", "")


def test_an_export_that_is_to_be_withdrawn_is_not_sent(exported: Exported) -> None:
    (exported.export.path / versions.TAINTED).write_text("erased")
    assert exported.get("model.gguf").status_code == 409
    (exported.export.path / versions.TAINTED).unlink()
    (exported.export.path / "model.gguf").unlink()
    assert exported.get("model.gguf").status_code == 404
    assert exported.client.get(f"{EXPORTS}/exp_none/files/model.gguf").status_code == 404
