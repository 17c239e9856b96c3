"""The part of Ollama's HTTP API that a deployment needs: blobs, create, list, show, copy, delete,
load and unload.

A stream succeeded only if its last line is `success`: errors come inside a stream that began with
status 200. What a model consists of is in modelfile.py and targets/ollama.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx2

from thumbwheel.core import log
from thumbwheel.core.addresses import leads_to_loopback
from thumbwheel.core.errors import ConfigError, ModelError, NotFound, StorageError, ThumbwheelError

PORT = 11434
CHUNK = 1 << 20
FULL = ("no space left", "disk quota", "not enough space")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,79})?")

Version = tuple[int, ...]


def address(host_setting: str | None) -> str:
    """Return the server's URL from `host_setting`, else from OLLAMA_HOST, parsed as Ollama parses
    it. A server that listens on all addresses is asked on loopback. Raises ConfigError for an
    address that cannot be parsed."""
    text = (host_setting or os.environ.get("OLLAMA_HOST") or "").strip("\"' ").rstrip("/")
    scheme, mark, host = text.rpartition("://")
    scheme_port = 443 if scheme == "https" else 80
    default_port = scheme_port if mark else PORT
    try:
        url = urlsplit(f"{scheme or 'http'}://{host or '127.0.0.1'}")
        port = url.port or default_port
    except ValueError as error:
        raise ConfigError(
            f"Ollama's address {text!r}", str(error), "Give host:port or a URL, as 127.0.0.1:11434"
        ) from None
    name = url.hostname or ""
    if name in ("0.0.0.0", "::", ""):
        name = "127.0.0.1"
    elif ":" in name:
        name = f"[{name}]"
    return f"{url.scheme}://{name}:{port}"


def full_name(name: str) -> str:
    """Return `name` with its tag, as lists show it."""
    return name if ":" in name else f"{name}:latest"


class OllamaServer:
    """The server at `url`, inside `with OllamaServer(url) as server`. `wait` is how many seconds a
    model may take to load."""

    def __init__(self, url: str, wait: float = 120.0, start: str = "ollama serve") -> None:
        self.url, self._start = url, start
        self._http = httpx2.Client(
            base_url=url,
            timeout=httpx2.Timeout(wait, connect=5.0),
            trust_env=not leads_to_loopback(url),
        )

    def version(self) -> Version:
        """Return the version, such as (0, 33, 0); a build without a version counts as the
        newest."""
        text = str(self._json("GET", "/api/version").get("version"))
        numbers = tuple(int(part) for part in re.findall(r"\d+", text.split("-")[0])[:3])
        return numbers if any(numbers) else (1 << 30,)

    def digests(self) -> dict[str, str]:
        """Return name:tag -> digest of every model there."""
        models = self._json("GET", "/api/tags").get("models") or []
        return {model["name"]: model["digest"] for model in models}

    def show(self, name: str) -> dict[str, Any]:
        """Return the template, parameters, system text and details of a model."""
        return self._json("POST", "/api/show", {"model": name})

    def put(self, path: Path, digest: str) -> None:
        """Upload the file as a blob, unless the server has it. A broken transfer leaves nothing in
        use."""
        blob = f"/api/blobs/sha256:{digest}"
        if self._request("HEAD", blob, missing=True).status_code == 200:
            return
        size = path.stat().st_size
        with log.progress(f"sending {path.name}", size / 1e6, "MB") as advance:
            self._request(
                "POST", blob, content=_chunks(path, advance), headers={"Content-Length": str(size)}
            )

    def create(self, name: str, fields: Mapping[str, Any]) -> list[str]:
        """Create or replace the model `name`; return the statuses that the server sent."""
        statuses: list[str] = []
        with log.progress(f"creating {name}", None) as advance:
            for line in self._lines("/api/create", {"model": name, "stream": True, **fields}):
                if "error" in line:
                    raise self._failed(f"model {name!r}", str(line["error"]))
                statuses.append(str(line.get("status")))
                advance(0, statuses[-1])
        last_status = statuses[-1] if statuses else "nothing"
        if last_status != "success":
            raise self._failed(
                f"model {name!r}", f"the server stopped before it was made, after {last_status!r}"
            )
        return statuses

    def copy(self, source: str, destination: str) -> None:
        """Let `destination` name the model of `source`, in one step."""
        self._request("POST", "/api/copy", body={"source": source, "destination": destination})

    def delete(self, name: str) -> None:
        """Remove a name; its files go when no other name uses them."""
        self._request("DELETE", "/api/delete", body={"model": name}, missing=True)

    def load(self, name: str, keep: int | str) -> None:
        """Load a model and keep it for `keep`: a duration as `30m`, seconds, or -1 for ever; 0
        unloads it. Calls of /v1 leave it so."""
        self._request(
            "POST",
            "/api/generate",
            body={"model": name, "keep_alive": keep, "stream": False},
            missing=keep == 0,
        )

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            reply = self._request(method, path, body=body).json()
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise self._failed(
                f"{method} {path}",
                "the reply is no JSON object: something other than Ollama answers there",
            )
        return reply

    def _lines(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            with self._http.stream(
                "POST", path, json=body, timeout=httpx2.Timeout(None, connect=5.0)
            ) as reply:
                if reply.status_code >= 400:
                    reply.read()
                    raise self._failed(f"POST {path}", _message(reply))
                for line in filter(None, reply.iter_lines()):
                    yield json.loads(line)
        except httpx2.TransportError as error:
            raise self._broken(error) from None
        except ValueError:
            raise self._failed(f"POST {path}", "a line of the reply is no JSON") from None

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content: Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        missing: bool = False,
    ) -> httpx2.Response:
        try:
            reply = self._http.request(method, path, json=body, content=content, headers=headers)
        except httpx2.TransportError as error:
            raise self._broken(error) from None
        if reply.status_code >= 400 and not (missing and reply.status_code == 404):
            raise self._failed(
                f"{method} {path}",
                _message(reply),
                NotFound if reply.status_code == 404 else ModelError,
            )
        return reply

    def _broken(self, error: httpx2.TransportError) -> ModelError:
        what = f"Ollama at {self.url}"
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return ModelError(
                what,
                "nothing answers there",
                f"Start it: {self._start} (or set OLLAMA_HOST to where it runs)",
            )
        if isinstance(error, httpx2.ReadTimeout):
            return ModelError(
                what,
                "it did not answer in time",
                "Try again, with --set wait=600 for a large model",
            )
        return ModelError(
            what,
            f"the connection broke ({error})",
            "Start it again if it ended, and repeat the command",
        )

    def _failed(
        self, what: str, why: str, kind: type[ThumbwheelError] = ModelError
    ) -> ThumbwheelError:
        what = f"{what} of Ollama at {self.url}"
        if any(sign in why.lower() for sign in FULL):
            return StorageError(
                what, why, "Free space where Ollama keeps its models (OLLAMA_MODELS), then repeat"
            )
        return kind(
            what,
            why,
            "See its log (`journalctl -u ollama`, or where it was started); a newer Ollama knows "
            "more architectures",
        )

    def __enter__(self) -> OllamaServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()


def _chunks(path: Path, advance: Callable[..., None]) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            yield chunk
            advance(len(chunk) / 1e6)


def _message(reply: httpx2.Response) -> str:
    try:
        return str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {reply.status_code}: {' '.join(reply.text.split())[:200]}"
