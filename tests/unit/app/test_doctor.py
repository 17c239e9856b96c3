"""`doctor` names what is wrong, with a way to mend it, and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.servers.postgres_server import Databases
from thumbwheel.app import doctor
from thumbwheel.app.doctor import DoctorFinding, FindingState, examine
from thumbwheel.app.open import Opener
from thumbwheel.core.config import Home
from thumbwheel.db.workspace import Workspace


def findings(folder: Path, config: Path | None = None) -> dict[str, DoctorFinding]:
    return {finding.name: finding for finding in examine(Opener(folder, config))}


class ModelServer(BaseHTTPRequestHandler):
    """Answers as Ollama and as vLLM do."""

    def do_GET(self) -> None:
        answers = {
            "/api/version": {"version": "0.31.2"},
            "/v1/models": {"data": [{"id": "small"}, {"id": "large"}]},
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answers[self.path]).encode())

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def model_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ModelServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_home_that_is_not_there_stays_so(tmp_path: Path) -> None:
    examined = findings(tmp_path / "home")
    assert examined["home"].state is FindingState.NOTE
    assert examined["database"].state is FindingState.NOTE
    assert not (tmp_path / "home").exists()


def test_a_sound_home_has_nothing_wrong(tmp_path: Path) -> None:
    Workspace.open(Home.at(tmp_path / "home")).__exit__(None, None, None)
    examined = findings(tmp_path / "home")
    assert not [finding for finding in examined.values() if finding.state is FindingState.WRONG]
    assert examined["database"].text.startswith("SQLite")
    assert examined["deployments"].text == "none"


def test_each_fault_is_named_with_its_mending(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    Workspace.open(home).__exit__(None, None, None)
    home.path.chmod(0o755)
    home.inbox.mkdir(exist_ok=True)
    (home.inbox / "rejected.jsonl").write_text("{}\n")
    late = home.inbox / f"spool-{9_999_999_999_999:013}-1-abcdef01.jsonl"
    settings = tmp_path / "settings.yaml"
    settings.write_text("gatewy: {}\n")

    examined = findings(home.path, settings)
    for name in ("home", "settings", "inbox"):
        assert examined[name].state is FindingState.WRONG, name
        assert examined[name].fix
    assert "chmod 700" in examined["home"].fix
    assert "gateway" in examined["settings"].fix

    (home.inbox / "rejected.jsonl").unlink()
    late.write_text("{}\n")
    assert "future" in findings(home.path)["inbox"].text


def test_all_that_is_not_good_comes_with_a_fix(tmp_path: Path) -> None:
    examined = findings(tmp_path / "home")
    assert set(examined) >= {
        *("installation", "training", "machine", "home", "disk", "settings", "database", "inbox"),
        *("deployments", "sandbox", "llama.cpp", "ollama", "vllm", "clock"),
    }
    for finding in examined.values():
        assert finding.state is FindingState.GOOD or finding.fix, finding


def test_a_model_server_that_answers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_server: str
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", model_server)
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"deploy: {{vllm: {{url: '{model_server}'}}}}\n")
    examined = findings(tmp_path / "home", settings)
    assert "0.31.2" in examined["ollama"].text and "small, large" in examined["vllm"].text
    assert examined["ollama"].state is examined["vllm"].state is FindingState.GOOD


def test_a_clock_that_is_not_that_of_the_database_is_named(
    tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = databases.migrated()
    monkeypatch.setenv("THUMBWHEEL_DATABASE", url)
    try:
        assert findings(tmp_path)["clock"].state is not FindingState.WRONG
        monkeypatch.setattr(doctor, "clock_difference", lambda connection: 7200.0)
        clock = findings(tmp_path)["clock"]
        assert (clock.state, clock.text) == (
            FindingState.WRONG,
            "it is 2 h 0 min ahead of that of the database",
        )
        assert "timedatectl" in clock.fix
    finally:
        databases.drop(url)


def test_a_clock_that_was_set_back_is_named(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    Workspace.open(home).__exit__(None, None, None)
    assert findings(home.path)["clock"].state is not FindingState.WRONG
    later = time.time() + 7200
    os.utime(home.path / "thumbwheel.db", (later, later))
    clock = findings(home.path)["clock"]
    assert clock.state is FindingState.WRONG and "future" in clock.text
    assert "timedatectl" in clock.fix


def test_a_database_of_another_version_is_named_and_left(tmp_path: Path) -> None:
    import sqlite3

    home = Home.at(tmp_path / "home")
    Workspace.open(home).__exit__(None, None, None)
    with sqlite3.connect(home.path / "thumbwheel.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'tw0001'")
    examined = findings(home.path)
    assert examined["database"].state is FindingState.NOTE
    assert "tw0001" in examined["database"].text
    with sqlite3.connect(home.path / "thumbwheel.db") as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchone() == ("tw0001",)


@pytest.mark.slow
def test_the_command_ends_with_1_where_something_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "thumbwheel", "--home", str(tmp_path / "home")]
    (tmp_path / "home").mkdir(mode=0o755)
    done = subprocess.run(
        [*command, "doctor", "--json"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    states = {finding["name"]: finding["state"] for finding in json.loads(done.stdout)}
    assert states["home"] == "wrong" and states["installation"] == "good"
