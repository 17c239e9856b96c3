"""vLLM's routes for adapters, for tests, as its models/serving.py has them; it checks what it loads
and computes nothing."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any


class VllmServer:
    """Serves `base` inside `with VllmServer(base) as server`; without `updating` the routes are not
    there."""

    def __init__(
        self,
        base: Path,
        key: str | None = None,
        updating: bool = True,
        max_rank: int = 16,
        port: int = 0,
    ) -> None:
        self.base, self.key, self.updating, self.max_rank = base, key, updating, max_rank
        self.adapters: dict[str, str] = {}
        self.seen: list[str] = []
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", port), type("Bound", (Handler,), {"vllm": self})
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> VllmServer:
        Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def models(self) -> dict[str, Any]:
        base = {"id": "base", "object": "model", "root": str(self.base), "parent": None}
        loaded = [
            {"id": name, "object": "model", "root": path, "parent": "base"}
            for name, path in self.adapters.items()
        ]
        return {"object": "list", "data": [base, *loaded]}

    def load(self, body: dict[str, Any]) -> tuple[int, Any]:
        name, path = body["lora_name"], Path(body["lora_path"])
        if name in self.adapters and not body.get("load_inplace"):
            return self.error(400, f"The lora adapter '{name}' has already been loaded.")
        if not (path / "adapter_config.json").is_file():
            return self.error(404, f"Loading lora {name} failed: No adapter found for {path}")
        rank = json.loads((path / "adapter_config.json").read_text())["r"]
        if rank > self.max_rank:
            return self.error(
                500, f"LoRA rank {rank} is greater than max_lora_rank {self.max_rank}."
            )
        self.adapters[name] = str(path)
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["lora_name"]
        if name not in self.adapters:
            return self.error(404, f"The lora adapter '{name}' cannot be found.")
        del self.adapters[name]
        return 200, f"Success: LoRA adapter '{name}' removed successfully."

    def error(self, status: int, message: str) -> tuple[int, Any]:
        return status, {
            "error": {"message": message, "type": "BadRequestError", "param": None, "code": status}
        }


class Handler(BaseHTTPRequestHandler):
    vllm: VllmServer

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        self.vllm.seen.append(f"{self.command} {self.path}")
        routes = {
            "/v1/load_lora_adapter": self.vllm.load,
            "/v1/unload_lora_adapter": self.vllm.unload,
        }
        if self.vllm.key and self.headers.get("Authorization") != f"Bearer {self.vllm.key}":
            status, value = 401, {"error": "Unauthorized"}
        elif self.path == "/v1/models":
            status, value = 200, self.vllm.models()
        elif self.vllm.updating and self.path in routes:
            status, value = routes[self.path](body)
        else:
            status, value = 404, {"detail": "Not Found"}
        content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass
