"""N5: the token of a home, which may do everything, stands in no log and in no URL.

`thumbwheel serve` printed it on standard error, which services and `2> serve.log` keep in files
that others read.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path
from urllib.request import Request, build_opener

import pytest

from tests.command_line import Run
from tests.servers.thumbwheel_server import running, serve_command
from tests.waiting import until
from tests.worlds.gateway_world import GatewayWorld
from thumbwheel.access.gate import replace_token
from thumbwheel.access.local_token import TOKEN, LocalToken
from thumbwheel.access.login_codes import SECONDS, LoginCodes
from thumbwheel.access.types import PAGE_OF_OWNER
from thumbwheel.server.handover import served_urls

CODE = re.compile(r"/login\?code=([\w-]+)")


@pytest.mark.slow
def test_a_log_of_serve_lets_nobody_in(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "serve.log"
    with running(home, log=log) as server:
        whoami = Request(f"{server.url}/live")
        build_opener().open(whoami).close()
    text = log.read_text()
    token = LocalToken.of_file(home / "access.token").read()
    assert "thumbwheel open" in text
    assert token not in text and not TOKEN.search(text) and not CODE.search(text)


@pytest.mark.slow
def test_a_terminal_gets_a_code_and_not_the_token(tmp_path: Path) -> None:
    home = tmp_path / "home"
    reader, terminal = os.openpty()
    server = subprocess.Popen(serve_command(home, 0), stderr=terminal, stdin=subprocess.DEVNULL)
    os.close(terminal)
    text = ""
    try:
        while "/login?code=" not in text or not text.endswith("\n"):
            text += os.read(reader, 4096).decode()
    finally:
        server.terminate()
        drain = threading.Thread(target=_read_all, args=(reader,))
        drain.start()
        server.wait(60)
        drain.join()
        os.close(reader)
    assert LocalToken.of_file(home / "access.token").read() not in text


def _read_all(reader: int) -> None:
    while True:
        try:
            if not os.read(reader, 4096):
                return
        except OSError:  # nobody writes any more
            return


def test_the_token_in_a_url_opens_nothing(gateway: GatewayWorld) -> None:
    token = LocalToken.of_file(gateway.ws.home.access_token).read()
    gateway.client.get(f"/login?token={token}")
    assert gateway.client.get("/api/whoami").status_code == 401
    assert gateway.client.get(f"/login?code={token}").status_code == 401


def test_a_code_works_once(gateway: GatewayWorld) -> None:
    code = LoginCodes(gateway.ws.home.login_codes).make()
    url = f"/login?code={code}"
    assert gateway.client.get(url).status_code == 303
    assert gateway.client.get("/api/whoami").status_code == 200
    gateway.client.cookies.clear()
    assert gateway.client.get(url).status_code == 401
    assert gateway.client.get("/api/whoami").status_code == 401


def test_of_many_with_one_code_one_gets_in(tmp_path: Path) -> None:
    codes = LoginCodes(tmp_path / "codes")
    code = codes.make()
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(codes.redeem(code))) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 15 + [True]


def test_an_old_code_opens_nothing(tmp_path: Path) -> None:
    codes = LoginCodes(tmp_path / "codes")
    code, other = codes.make(), codes.make()
    assert len(list(codes.folder.iterdir())) == 2
    for file in codes.folder.iterdir():
        os.utime(file, (1, file.stat().st_mtime - SECONDS - 1))
    assert not codes.redeem(code)
    codes.make()
    assert len(list(codes.folder.iterdir())) == 1
    assert not codes.redeem(other)
    assert not codes.redeem("../access.token")


def test_a_code_is_for_its_owner_alone(tmp_path: Path) -> None:
    codes = LoginCodes(tmp_path / "codes")
    code = codes.make()
    (file,) = codes.folder.iterdir()
    assert codes.folder.stat().st_mode & 0o077 == 0
    assert code not in file.name and not file.read_bytes()


def test_a_new_token_ends_the_old_one_its_browsers_and_its_codes(gateway: GatewayWorld) -> None:
    ws, client = gateway.ws, gateway.client
    codes = LoginCodes(ws.home.login_codes)
    old = {"authorization": f"Bearer {LocalToken.of_file(ws.home.access_token).read()}"}
    assert client.get("/api/whoami", headers=old).status_code == 200
    assert client.get(f"/login?code={codes.make()}").status_code == 303
    waiting = codes.make()
    replace_token(ws)
    gateway.application.api.state.gate.directory.refresh()
    assert client.get("/api/whoami").status_code == 401
    client.cookies.clear()
    assert client.get("/api/whoami", headers=old).status_code == 401
    assert client.get(f"/login?code={waiting}").status_code == 401
    new = {"authorization": f"Bearer {LocalToken.of_file(ws.home.access_token).read()}"}
    assert client.get("/api/whoami", headers=new).status_code == 200
    ws.home.access_token.unlink()
    assert client.get("/api/whoami", headers=new).status_code == 401


@pytest.mark.slow
def test_open_says_where_the_server_of_this_home_is(tmp_path: Path, command_line: Run) -> None:
    home = tmp_path / "home"
    with running(home) as server:
        until(lambda: bool(served_urls(home)))  # it listens a moment before it says where
        code, out, _ = command_line("--home", str(home), "open", "--no-browser")
        assert code == 0 and out.startswith(f"{server.url}/login?code=")
    code, _, problem = command_line("--home", str(home), "open", "--no-browser")
    assert code != 0 and "thumbwheel serve" in problem


def test_who_holds_a_feedback_token_of_the_owner_s_app_is_not_the_owner(
    gateway: GatewayWorld,
) -> None:
    """Words of the home's owner need no second sender in an experiment, and pass quarantines."""
    row = {"id": "t1", "input": "Where is it?", "output": "There."}
    stored = gateway.client.post("/a/desk/api/traces", json=row, headers=gateway.owner)
    assert stored.status_code == 202
    path = "/a/desk/api/feedback"
    reply = gateway.client.post(f"{path}-tokens", json={"trace": "t1"}, headers=gateway.owner)
    headers = {"authorization": f"Bearer {reply.json()['token']}"}
    judgement = {"trace": "t1", "thumb": True}
    assert gateway.client.post(path, json=judgement, headers=headers).status_code == 202
    assert gateway.lines(2)[-1]["sender"] == PAGE_OF_OWNER
