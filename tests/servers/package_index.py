"""A package index on loopback with one wheel, which holds a base."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from thumbwheel.models.known_bases import KNOWN_BASES, KnownBase

CONTENT = b"GGUF" + bytes(range(256)) * 2000


class Index:
    """A package index with one wheel. `cut`: bytes after which a download breaks off; it takes a
    range unless `ranges` is False."""

    def __init__(self, wheel: Path, html: bool = False) -> None:
        self.wheel, self.html, self.cut, self.ranges = wheel, html, 0, True
        self.asked: list[str | None] = []
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Bound", (Handler,), {"index": self})
        )
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    @classmethod
    def with_base(cls, folder: Path) -> Index:
        """Start an index whose wheel is written into `folder`."""
        wheel = folder / "small-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("small/model.gguf", CONTENT)
        return cls(wheel)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def base(self) -> KnownBase:
        """Return the base that the wheel holds."""
        content = self.wheel.read_bytes()
        return replace(
            KNOWN_BASES["smollm2-135m"],
            id="small",
            package="small",
            version="1.0",
            wheel=self.wheel.name,
            wheel_sha256=hashlib.sha256(content).hexdigest(),
            wheel_size=len(content),
            member="small/model.gguf",
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            size=len(CONTENT),
        )


class Handler(BaseHTTPRequestHandler):
    index: Index

    def do_GET(self) -> None:
        name = self.index.wheel.name
        if self.path == "/simple/small/":
            address = f"/files/{name}"
            kind, page = (
                "application/vnd.pypi.simple.v1+json",
                json.dumps({"files": [{"filename": name, "url": address, "hashes": {}}]}),
            )
            if self.index.html:
                kind, page = "text/html", f'<a href="{address}#sha256=0">{name}</a>'
            self.answer(200, page.encode(), kind)
        elif self.path == f"/files/{name}":
            content, status = self.index.wheel.read_bytes(), 200
            asked = self.headers.get("Range")
            self.index.asked.append(asked)
            if asked and self.index.ranges:
                content, status = content[int(asked[6:-1]) :], 206
            self.answer(status, content, "application/octet-stream", self.index.cut)
            self.index.cut = 0
        else:
            self.answer(404, b"", "text/plain")

    def answer(self, status: int, content: bytes, kind: str, cut: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:cut] if cut else content)
        self.close_connection = True

    def log_message(self, format: str, *values: object) -> None:
        """Nothing: the test looks at what was asked."""
