"""A llama-server process on loopback that lives as long as its owner: started, awaited, stopped.

Servers that outlive the command are the deploy stage's, which uses `arguments` and `environment`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from thumbwheel.core.child import die_with_parent
from thumbwheel.core.errors import Conflict, ModelError, NotFound
from thumbwheel.core.hardware import usable_cores
from thumbwheel.core.private import UMASK
from thumbwheel.llm import tools
from thumbwheel.llm.port import HOST, free_port

EXPORT = "Export one: thumbwheel export VERSION --agent A --format gguf"
POLL = 0.02
"""Seconds between two looks at a server that starts."""
GRACE = 5.0
"""Seconds that it has to end by itself."""
TAIL = 12
"""Lines of its log that an error shows."""


def arguments(
    model: Path,
    port: int,
    *,
    adapters: Sequence[Path] = (),
    threads: int | None = None,
    context: int | None = None,
    parallel: int = 1,
    alias: str | None = None,
) -> list[str]:
    """Return the command line for `model`, without the program.

    With adapters the in-memory prompt cache is off: it ignores which adapter computed a prompt, so
    a request could get another adapter's answer.
    """
    command = ["--model", str(model), "--host", HOST, "--port", str(port)]
    command += ["--offline", "--no-webui", "--parallel", str(parallel)]
    command += ["--threads", str(threads or default_threads())]
    command += ["--ctx-size", str((context or 0) * parallel)]
    for adapter in adapters:
        command += ["--lora", str(adapter)]
    if adapters:
        command += ["--cache-ram", "0"]
    if alias:
        command += ["--alias", alias]
    return command


def environment(api_key: str | None = None) -> dict[str, str]:
    """Return the variables that the server needs besides this process's environment. A key on the
    command line could be read by every user of the machine."""
    return {"LLAMA_API_KEY": api_key} if api_key else {}


def with_adapters(scales: Sequence[float]) -> dict[str, object]:
    """Return the fields that every request to a server with adapters needs, with one scale per
    adapter in their order: without them the server mixes in other adapters' cached states."""
    return {
        "lora": [{"id": number, "scale": scale} for number, scale in enumerate(scales)],
        "cache_prompt": False,
    }


def default_threads() -> int:
    """Return half of the cores, at least 1: threads that wait for each other stall on a busy
    core."""
    return max(1, usable_cores() // 2)


class LlamaServer:
    """`model` behind an OpenAI-compatible API inside `with LlamaServer(model) as server`; `log` is
    its log, by default one that goes."""

    def __init__(
        self,
        model: Path,
        *,
        adapters: Sequence[Path] = (),
        port: int = 0,
        threads: int | None = None,
        context: int | None = None,
        parallel: int = 1,
        log: Path | None = None,
        api_key: str | None = None,
        wait: float = 120.0,
    ) -> None:
        for path in (model, *adapters):
            if not path.is_file():
                raise NotFound(f"model file {str(path)!r}", "there is no such file", EXPORT)
        self.model, self.adapters, self.port, self.api_key = model, tuple(adapters), port, api_key
        self._threads, self._context, self._parallel, self._wait = threads, context, parallel, wait
        self._path, self._log = log, None if log else tempfile.TemporaryFile()  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For a client, with /v1."""
        return f"http://{HOST}:{self.port}/v1"

    @property
    def pid(self) -> int | None:
        """Of the process; None before it starts and after it was stopped."""
        return self._process.pid if self._process else None

    def start(self) -> LlamaServer:
        """Start the server, and return it once it answers. Raises ModelError with its last lines if
        it ends before, Conflict if the port is in use."""
        program = tools.require("llama-server").path
        port = free_port(self.port)
        if port is None:
            raise Conflict(
                f"port {self.port}",
                "another program already listens there",
                "Name another one, or 0 for any that is free",
            )
        self.port = port
        options = arguments(
            self.model,
            self.port,
            adapters=self.adapters,
            threads=self._threads,
            context=self._context,
            parallel=self._parallel,
        )
        self._process = subprocess.Popen(
            [str(program), *options],
            stdin=subprocess.DEVNULL,
            stdout=self._stream(),
            stderr=subprocess.STDOUT,
            env=os.environ | environment(self.api_key),
            umask=UMASK,
            preexec_fn=die_with_parent,
        )
        end = time.monotonic() + self._wait
        try:
            while not self.healthy():
                if self._process.poll() is not None or time.monotonic() > end:
                    raise self._failed()
                time.sleep(POLL)
        except BaseException:
            self.stop()
            raise
        return self

    def healthy(self) -> bool:
        """Return whether the server runs, has loaded the model and answers now."""
        import httpx2

        if self._process is None or self._process.poll() is not None:
            return False
        try:
            url = f"http://{HOST}:{self.port}/health"
            reply = httpx2.get(url, timeout=5.0, trust_env=False)
        except httpx2.TransportError:
            return False
        return reply.status_code == 200

    def post(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        """Return the reply of a path such as /tokenize. Raises ModelError if the server refuses or
        cannot be reached."""
        import httpx2

        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            reply = httpx2.post(
                f"http://{HOST}:{self.port}{path}",
                json=body,
                headers=headers,
                timeout=120.0,
                trust_env=False,
            )
        except httpx2.TransportError as error:
            raise ModelError(
                f"llama-server at {self.url}", f"{type(error).__name__}: {error}", "See its log"
            ) from None
        if reply.status_code != 200:
            raise ModelError(
                f"llama-server at {self.url}",
                f"HTTP {reply.status_code}: {reply.text[:300]}",
                "See its log",
            )
        return dict(reply.json())

    def stop(self) -> None:
        """Stop the server, and wait until it has ended."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
            return
        process.kill()
        process.wait()

    def tail(self) -> str:
        """Return the last lines of the server's log."""
        if self._path:
            text = self._path.read_bytes() if self._path.is_file() else b""
        else:
            assert self._log  # noqa: S101
            self._log.seek(0)
            text = self._log.read()
        return "\n".join(text.decode(errors="replace").splitlines()[-TAIL:])

    def __enter__(self) -> LlamaServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _stream(self) -> IO[bytes]:
        return self._path.open("ab") if self._path else self._log  # type: ignore[return-value]

    def _failed(self) -> ModelError:
        code = self._process.poll() if self._process else None
        why = f"llama-server ended with {code}"
        if code is None:
            why = f"llama-server did not answer within {self._wait:.0f} s"
        return ModelError(
            f"model {str(self.model)!r}",
            f"{why}:\n{self.tail()}",
            "Check that the file is complete and fits into memory",
        )
