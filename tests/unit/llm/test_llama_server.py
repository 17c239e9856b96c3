"""A real llama-server: answers, ends with its owner, and its failures say why."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.models.tiny_models import tiny_adapter
from tests.servers.llama_tools import needs, wide_base
from tests.waiting import until
from thumbwheel.core.errors import Conflict, ModelError, NotFound
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.types import ExportSource
from thumbwheel.llm.llama_server import LlamaServer, arguments, with_adapters

pytestmark = pytest.mark.slow  # three models are converted
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(base, adapter, merged) as GGUF."""
    needs("llama-server", "converter", "library", "bindings")
    folder = tmp_path_factory.mktemp("served")
    base = wide_base(folder / "base")
    adapter = tiny_adapter(base, folder / "adapter")
    paths = []
    for name, format, over in (
        ("plain", "gguf", None),
        ("lora", "lora_gguf", adapter),
        ("merged", "gguf", adapter),
    ):
        (folder / name).mkdir()
        FORMATS.get(format).write(ExportSource(str(base), over, str(base), "F32"), folder / name)
        paths.append(next((folder / name).glob("*.gguf")))
    return paths[0], paths[1], paths[2]


def answer(server: LlamaServer, **more: object) -> str:
    reply = httpx2.post(
        f"{server.url}/chat/completions",
        json=CHAT | with_adapters([1.0] * len(server.adapters)) | more,
        timeout=60,
    )
    reply.raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


def test_it_answers_and_ends(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    base, *_ = files
    with LlamaServer(base, context=256, log=tmp_path / "server.log") as server:
        assert server.healthy()
        assert server.url.startswith("http://127.0.0.1:")
        first = answer(server)
        assert first == answer(server)
        assert server.post("/tokenize", {"content": "Hello"})["tokens"]
        pid = server.pid
        assert pid
    assert not server.healthy()
    assert not Path(f"/proc/{pid}").exists()
    assert (tmp_path / "server.log").read_text()


def test_an_adapter_over_its_base_answers_as_the_merged_model(
    files: tuple[Path, Path, Path],
) -> None:
    base, adapter, merged = files
    with LlamaServer(merged, context=256) as server:
        wanted = answer(server)
    with LlamaServer(base, adapters=[adapter], context=256) as server:
        for _ in range(3):
            assert answer(server) == wanted
            assert answer(server, **with_adapters([0.0])) != wanted, (
                "with its adapter off it is the base"
            )


def test_a_killed_server_is_not_healthy(files: tuple[Path, Path, Path]) -> None:
    with LlamaServer(files[0], context=256) as server:
        assert server.pid
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.healthy())


def test_a_key_is_asked_for_and_not_shown(files: tuple[Path, Path, Path]) -> None:
    with LlamaServer(files[0], context=256, api_key="secret-key") as server:
        assert httpx2.post(f"{server.url}/chat/completions", json=CHAT).status_code == 401
        assert server.post("/tokenize", {"content": "a"})["tokens"]
        assert b"secret-key" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


def test_what_cannot_be_served_says_why(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        LlamaServer(tmp_path / "none.gguf")
    half = tmp_path / "half.gguf"
    half.write_bytes(files[0].read_bytes()[: files[0].stat().st_size // 2])
    with pytest.raises(ModelError, match=r"(?s)llama-server ended with.*half.gguf"):
        LlamaServer(half).start()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(Conflict, match="already listens there"):
            LlamaServer(files[0], port=other.getsockname()[1]).start()


def test_it_dies_with_its_owner(files: tuple[Path, Path, Path]) -> None:
    script = (
        "import sys, time; from pathlib import Path; from thumbwheel.llm.llama_server import "
        "LlamaServer\n"
    )
    script += (
        "print(LlamaServer(Path(sys.argv[1]), context=256).start().pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(files[0])], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    until(lambda: not _lives(pid))


def _lives(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_arguments() -> None:
    plain = arguments(Path("m.gguf"), 9, threads=3, context=512, parallel=2, alias="support-v3")
    assert plain[plain.index("--ctx-size") + 1] == "1024", (
        "each slot has the context that was asked for"
    )
    assert "--cache-ram" not in plain
    lora = arguments(Path("m.gguf"), 9, adapters=[Path("a.gguf"), Path("b.gguf")])
    assert lora[lora.index("--cache-ram") + 1] == "0"
    assert [lora[index + 1] for index, word in enumerate(lora) if word == "--lora"] == [
        "a.gguf",
        "b.gguf",
    ]
