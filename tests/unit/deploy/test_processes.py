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

SERVER = """
import http.server, os, sys, subprocess
if "child" in sys.argv: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.headers["Authorization"] == "Bearer " + os.environ["TOKEN"] else 401); self.end_headers()
    def log_message(self, *a): pass
print("listening", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"""


def run(place: Path, code: str = SERVER, *more: str, **options):
    def command(port, token):
        return [sys.executable, "-c", code, str(port), *more], {"TOKEN": token}

    with processes.held(place):
        return processes.start(
            place,
            command,
            lambda one: one.answers("ready"),
            what="a server",
            wait=options.pop("wait", 10),
            **options,
        )


def lives(pid: int) -> bool:
    return processes._started(pid) is not None


def test_a_server_is_found_again_by_its_record_and_ends_when_told(place):
    one = run(place)
    assert processes.find(place) == one and one.answers("ready")
    assert not replace(one, token="another").answers("ready")
    assert (place / processes.RECORD).stat().st_mode & 0o077 == 0
    assert os.getsid(one.pid) == one.pid  # it does not hang on this terminal
    processes.stop(place)
    processes.stop(place)
    assert not lives(one.pid) and processes.find(place) is None
    assert (
        processes.why_dead(place) == "it was stopped, or never started in this home"
    )  # the log tells of no cause


def test_a_killed_server_is_known_to_be_dead_and_comes_back_at_its_port(place):
    one = run(place)
    os.kill(one.pid, signal.SIGKILL)
    while lives(one.pid):
        time.sleep(0.05)
    assert processes.find(place) is None
    assert "has ended; its log ends with: listening" in processes.why_dead(place)
    assert run(place).port == one.port


def test_a_number_that_another_process_has_now_is_not_taken_for_the_server(place):
    one = run(place)
    stranger = replace(one, started=str(int(one.started) - 1))
    (place / processes.RECORD).write_text(json.dumps(asdict(stranger)))
    assert processes.find(place) is None
    (place / processes.RECORD).write_text(json.dumps(asdict(one)))


def test_what_a_dead_server_had_started_is_ended_too(place):
    one = run(place, SERVER, "child")
    os.kill(one.pid, signal.SIGKILL)
    while lives(one.pid):
        time.sleep(0.05)
    assert processes._orphans(one)
    assert not processes._orphans(replace(one, token="of another server that had this number"))
    processes.stop(place)
    assert not processes._orphans(one)


def test_a_server_that_ends_while_it_starts_leaves_its_last_words_and_nothing_else(place):
    with pytest.raises(ModelError, match="no such model"):
        run(place, "raise SystemExit('no such model')")
    assert not (place / processes.RECORD).exists()


def test_a_server_that_never_answers_is_ended(place):
    with pytest.raises(ModelError, match=r"did not answer within 0.3 s: 4711"):
        run(
            place, "import os, time; print(4711, os.getpid(), flush=True); time.sleep(60)", wait=0.3
        )
    assert not lives(int(processes.tail(place).split()[1]))


def test_a_taken_port_is_an_error_and_starts_nothing(place):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Conflict, match=f"port {taken.getsockname()[1]} is taken"):
            run(place, port=taken.getsockname()[1])
    assert not (place / processes.LOG).exists()


def test_a_full_disk_leaves_the_old_file_and_no_other(place):
    place.mkdir()
    processes.write(place / "file", "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(StorageError, match="cannot be written"):
            processes.write(place / "file", "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in place.iterdir()] == ["file"] and (
        place / "file"
    ).read_text() == "old"


def test_a_copied_home_has_no_part_in_the_servers_of_the_original(place, tmp_path):
    one = run(place)
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    assert processes.find(copy) is None
    with pytest.raises(ModelError, match="never started in this home"):
        processes.token(copy, f"{one.url}/v1", "a model")
    processes.stop(copy)
    assert lives(one.pid) and one.answers("ready") and processes.find(place) == one
    second = run(copy)
    assert second.port != one.port and lives(one.pid)
    processes.stop(copy)
    assert lives(one.pid)
