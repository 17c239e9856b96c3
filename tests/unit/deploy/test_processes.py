"""Real processes, found again, ended, never left behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from thumbwheel.core.errors import Conflict, ModelError, StorageError
from thumbwheel.deploy import processes
from thumbwheel.llm.port import free_port

PORT_ATTEMPTS = 3
SERVER = """
import http.server, os, sys, subprocess
if "child" in sys.argv: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers["Authorization"] == "Bearer " + os.environ["TOKEN"]
        self.send_response(200 if known else 401); self.end_headers()
    def log_message(self, *a): pass
print("listening", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"""


def run(server_folder: Path, code: str = SERVER, *more: str, **options):
    def command(port, token):
        return [sys.executable, "-c", code, str(port), *more], {"TOKEN": token}

    with processes.locked(server_folder):
        return processes.start(
            server_folder,
            command,
            lambda server: server.answers("ready"),
            what="a server",
            wait=options.pop("wait", 10),
            **options,
        )


def lives(pid: int) -> bool:
    return processes._started(pid) is not None


def test_a_server_is_found_again_by_its_record_and_ends_when_told(server_folder):
    server = run(server_folder)
    assert processes.find(server_folder) == server and server.answers("ready")
    assert not replace(server, token="another").answers("ready")
    assert (server_folder / processes.RECORD).stat().st_mode & 0o077 == 0
    assert os.getsid(server.pid) == server.pid  # it does not hang on this terminal
    processes.stop(server_folder)
    processes.stop(server_folder)
    assert not lives(server.pid) and processes.find(server_folder) is None
    assert (
        processes.failure_reason(server_folder) == "it was stopped, or never started in this home"
    )  # the log tells of no cause


def test_a_killed_server_is_known_to_be_dead_and_comes_back_at_its_port(server_folder, monkeypatch):
    probes: dict[int, int | None] = {}

    def probe(port=0):
        probes[port] = free_port(port)
        return probes[port]

    monkeypatch.setattr(processes, "free_port", probe)

    # While no server of ours lives, another program may take the port. Only then another is tried.
    for _ in range(PORT_ATTEMPTS):
        server = run(server_folder)
        os.kill(server.pid, signal.SIGKILL)
        while lives(server.pid):
            time.sleep(0.05)
        assert processes.find(server_folder) is None
        assert "has ended; it logged no reason" in processes.failure_reason(server_folder)

        probes.clear()
        try:
            restarted = run(server_folder)
        except ModelError as error:
            # Here the port was taken after the probe, before the server could listen.
            if "Address already in use" not in str(error):
                raise
            continue
        assert server.port in probes  # its last port is always asked for first
        if probes[server.port] is not None:
            assert restarted.port == server.port
            return
    pytest.fail(f"the last port was not free at any of {PORT_ATTEMPTS} restarts")


def test_a_number_that_another_process_has_now_is_not_taken_for_the_server(server_folder):
    server = run(server_folder)
    stranger = replace(server, started=str(int(server.started) - 1))
    (server_folder / processes.RECORD).write_text(json.dumps(asdict(stranger)))
    assert processes.find(server_folder) is None
    (server_folder / processes.RECORD).write_text(json.dumps(asdict(server)))


def test_what_a_dead_server_had_started_is_ended_too(server_folder):
    server = run(server_folder, SERVER, "child")
    os.kill(server.pid, signal.SIGKILL)
    while lives(server.pid):
        time.sleep(0.05)
    assert processes._orphans(server)
    assert not processes._orphans(replace(server, token="of another server that had this number"))
    processes.stop(server_folder)
    assert not processes._orphans(server)


def test_a_server_that_ends_while_it_starts_leaves_its_last_words_and_nothing_else(server_folder):
    with pytest.raises(ModelError, match="no such model"):
        run(server_folder, "raise SystemExit('no such model')")
    assert not (server_folder / processes.RECORD).exists()


def test_a_server_that_never_answers_is_ended(server_folder):
    with pytest.raises(ModelError, match=r"did not answer within 0.3 s: 4711"):
        run(
            server_folder,
            "import os, time; print(4711, os.getpid(), flush=True); time.sleep(60)",
            wait=0.3,
        )
    assert not lives(int(processes.tail(server_folder).split()[1]))


def test_a_taken_port_is_an_error_and_starts_nothing(server_folder):
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        with pytest.raises(Conflict, match=f"port {occupied.getsockname()[1]} is taken"):
            run(server_folder, port=occupied.getsockname()[1])
    assert not (server_folder / processes.LOG).exists()


def test_a_full_disk_leaves_the_old_file_and_no_other(server_folder):
    server_folder.mkdir()
    processes.write(server_folder / "file", "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(StorageError, match="cannot be written"):
            processes.write(server_folder / "file", "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in server_folder.iterdir()] == ["file"] and (
        server_folder / "file"
    ).read_text() == "old"


def test_a_copied_home_has_no_part_in_the_servers_of_the_original(server_folder, tmp_path):
    server = run(server_folder)
    copy = tmp_path / "copy"
    shutil.copytree(server_folder, copy)
    assert processes.find(copy) is None
    with pytest.raises(ModelError, match="never started in this home"):
        processes.token(copy, f"{server.url}/v1", "a model")
    processes.stop(copy)
    assert lives(server.pid) and server.answers("ready") and processes.find(server_folder) == server
    second = run(copy)
    assert second.port != server.port and lives(server.pid)
    processes.stop(copy)
    assert lives(server.pid)
