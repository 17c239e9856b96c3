"""An Ollama for tests: its HTTP contract with real blobs, hashes and manifests on disk; what it
says comes from a real llama-server.

`version` decides what the contract is (adapters, which side renders the chat template). `fail`
names a fault for the next request that can have it: "full disk", "broken upload", "error in
stream", "cut stream", "no load".
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import subprocess
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
from rapidfuzz.distance import Levenshtein

from thumbwheel.deploy.go_template import render
from thumbwheel.llm import tools
from thumbwheel.llm.llama_server import LlamaServer, with_adapters

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,79})?")
SAMPLING = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "repeat_penalty": 1.1,
    "repeat_last_n": 64,
}


class Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("-")[0].split("."))


def metadata(path: Path) -> dict[str, Any]:
    """The single values of a GGUF file's header."""
    simple = {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }
    with path.open("rb") as stream:

        def take(code: str) -> Any:
            return struct.unpack("<" + code, stream.read(struct.calcsize("<" + code)))[0]

        def value(kind: int) -> Any:
            if kind == 8:
                return stream.read(take("Q")).decode(errors="replace")
            if kind == 9:
                inner, many = take("I"), take("Q")
                return [value(inner) for _ in range(many)]
            return take(simple[kind])

        if stream.read(4) != b"GGUF":
            raise Refused(400, "supplied file was not in GGUF format")
        take("I"), take("Q")
        return {value(8): value(take("I")) for _ in range(take("Q"))}


class OllamaEmulator:
    """`built_in`: name -> (Jinja, Go), the templates that it takes for similar ones."""

    def __init__(
        self,
        folder: Path,
        version: str = "0.33.0",
        built_in: dict[str, tuple[str, str]] | None = None,
        port: int = 0,
    ) -> None:
        self.version, self.built_in, self.fail = version, built_in or {}, ""
        self.blobs, self.manifests = folder / "blobs", folder / "manifests"
        self.blobs.mkdir(parents=True, exist_ok=True)
        self.manifests.mkdir(exist_ok=True)
        self.seen: list[str] = []
        self.running: dict[str, tuple[LlamaServer, str, Any]] = {}
        self._lock = threading.Lock()
        self._starter = ThreadPoolExecutor(1)  # a llama-server ends with the thread that started it
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", port), type("Bound", (Handler,), {"ollama": self})
        )
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> OllamaEmulator:
        threading.Thread(
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
        for server, _, _ in self.running.values():
            server.stop()
        self._starter.shutdown()

    def fault(self, name: str) -> bool:
        """Whether `name` is the fault that is due; it happens once."""
        due, self.fail = self.fail == name, "" if self.fail == name else self.fail
        return due

    def blob(self, digest: str) -> Path:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise Refused(400, "invalid digest format")
        return self.blobs / digest.replace(":", "-")

    def keep(self, digest: str, content: Any) -> int:
        path = self.blob(digest)
        if path.exists():
            return 200
        part, hasher = self.blobs / f"{uuid.uuid4().hex}.part", hashlib.sha256()
        with part.open("wb") as stream:
            for chunk in content:
                if self.fault("full disk"):
                    part.unlink()
                    raise Refused(500, f"write {part}: no space left on device")
                if self.fault("broken upload"):
                    raise ConnectionAbortedError
                hasher.update(chunk)
                stream.write(chunk)
        if f"sha256:{hasher.hexdigest()}" != digest:
            part.unlink()
            raise Refused(
                400, f'digest mismatch, expected "{digest}", got "sha256:{hasher.hexdigest()}"'
            )
        part.rename(path)
        return 201

    def path_of(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise Refused(400, "invalid model name")
        return self.manifests / (name if ":" in name else f"{name}:latest")

    def manifest(self, name: str) -> dict[str, Any]:
        path = self.path_of(name)
        if not path.exists():
            raise Refused(404, f"model '{name}' not found")
        return dict(json.loads(path.read_text()))

    def check_create(self, body: dict[str, Any]) -> None:
        self.path_of(body.get("model") or body.get("name") or "")
        if "from" not in body and "files" not in body:
            raise Refused(400, "neither 'from' or 'files' was specified")
        for name in [*body.get("files", {}), *body.get("adapters", {})]:
            if name.startswith("/") or ".." in name:
                raise Refused(400, f"file path must be relative: {name}")
        if body.get("adapters") and numbers(self.version) >= (0, 34, 1):
            raise Refused(400, "LoRA adapters are no longer supported")
        if "modelfile" in body:
            raise Refused(400, "neither 'from' or 'files' was specified")

    def create(self, body: dict[str, Any]) -> Any:
        """The lines of the stream."""
        manifest: dict[str, Any] = {"parameters": {}, "template": "", "system": "", "adapter": ""}
        if "from" in body:
            manifest |= self.manifest(body["from"])
            yield {"status": f"using existing layer {manifest['model']}"}
        for digest in body.get("files", {}).values():
            yield {"status": "parsing GGUF"}
            manifest["model"] = self._taken(digest)
            jinja = metadata(self.blob(digest)).get("tokenizer.chat_template", "")
            near = {
                name: Levenshtein.distance(jinja, template)
                for name, (template, _) in self.built_in.items()
            }
            best = min(near, key=lambda name: near[name], default="")
            if best and jinja and near[best] < 100:
                manifest["template"] = self.built_in[best][1]
                yield {"status": f"using autodetected template {best}"}
        if self.fault("error in stream"):
            yield {"error": "unsupported architecture"}
            return
        if len(body.get("adapters", {})) > 1:
            yield {"error": "only one adapter is currently supported"}
            return
        for digest in body.get("adapters", {}).values():
            if metadata(self.blob(digest)).get("general.type") != "adapter":
                yield {"error": "supplied file was not an adapter"}
                return
            manifest["adapter"] = digest
            yield {"status": f"using existing layer {digest}"}
        manifest |= {part: body[part] for part in ("template", "system") if part in body}
        manifest["parameters"] |= body.get("parameters", {})
        if self.fault("cut stream"):
            yield {"status": "writing manifest"}
            return
        yield {"status": "writing manifest"}
        self.path_of(body.get("model") or body["name"]).write_text(
            json.dumps(manifest, sort_keys=True)
        )
        yield {"status": "success"}

    def _taken(self, digest: str) -> str:
        """From 0.30 on a model file is rewritten by llama-quantize, which refuses what its
        llama.cpp does not know."""
        path = self.blob(digest)
        if not path.exists():
            raise Refused(400, f"blob {digest} not found")
        program = tools.find("llama-quantize")
        if numbers(self.version) < (0, 30) or program is None:
            return digest
        copy = self.blobs / f"{uuid.uuid4().hex}.part"
        done = subprocess.run([program.path, path, copy, "COPY"], capture_output=True, text=True)
        if done.returncode:
            raise Refused(400, f"llama-quantize: {done.stderr.strip().splitlines()[-1]}")
        with copy.open("rb") as stream:
            new = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
        copy.rename(self.blob(new))
        return new

    def tags(self) -> dict[str, Any]:
        models = []
        for path in sorted(self.manifests.iterdir()):
            size = self.blob(json.loads(path.read_text())["model"]).stat().st_size
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            modified = "2026-11-01T00:00:00Z"
            models.append(
                {
                    "name": path.name,
                    "model": path.name,
                    "digest": digest,
                    "size": size,
                    "modified_at": modified,
                    "details": {},
                }
            )
        return {"models": models}

    def show(self, name: str) -> dict[str, Any]:
        manifest = self.manifest(name)
        fields = metadata(self.blob(manifest["model"]))
        lines = [
            f"{key} {json.dumps(item)}"
            for key, value in manifest["parameters"].items()
            for item in (value if isinstance(value, list) else [value])
        ]
        info = {key: value for key, value in fields.items() if not isinstance(value, list)}
        shown = {
            "template": manifest["template"] or "{{ .Prompt }}",
            "parameters": "\n".join(lines),
            "model_info": info,
        }
        system = {"system": manifest["system"]} if manifest["system"] else {}
        return {
            **shown,
            **system,
            "modelfile": f"FROM {self.blob(manifest['model'])}",
            "details": {"format": "gguf"},
            "capabilities": ["completion"],
        }

    def copy(self, source: str, destination: str) -> None:
        self.manifest(source)
        shutil.copy(self.path_of(source), self.path_of(destination))

    def delete(self, name: str) -> None:
        self.manifest(name)
        self.path_of(name).unlink()
        used = {
            digest
            for path in self.manifests.iterdir()
            for digest in re.findall(r"sha256:[0-9a-f]{64}", path.read_text())
        }
        for path in self.blobs.iterdir():
            if path.name.replace("-", ":") not in used:
                path.unlink()

    def load(self, name: str, keep: Any = None) -> LlamaServer:
        manifest = self.manifest(name)
        if isinstance(keep, str) and not re.fullmatch(r"-?\d+(\.\d+)?(ms|s|m|h)", keep):
            raise Refused(400, f'time: missing unit in duration "{keep}"')
        if self.fault("no load"):
            raise Refused(500, "llama runner process has terminated: loras are not yet implemented")
        key = json.dumps(
            [
                manifest["model"],
                manifest["adapter"],
                manifest["parameters"].get("num_ctx"),
                manifest["parameters"].get("num_thread"),
            ]
        )
        with self._lock:
            if key not in self.running:
                adapters = [self.blob(manifest["adapter"])] if manifest["adapter"] else []
                context, threads = (
                    manifest["parameters"].get("num_ctx", 4096),
                    manifest["parameters"].get("num_thread", 1),
                )
                server = LlamaServer(
                    self.blob(manifest["model"]),
                    adapters=adapters,
                    context=context,
                    threads=threads,
                )
                self._starter.submit(server.start).result()
                self.running[key] = (server, name, 300)
            server, first, keep_alive = self.running[key]
            self.running[key] = (server, first, keep_alive if keep is None else keep)
            return server

    def unload(self, name: str) -> None:
        manifest = self.manifest(name)
        for key in [
            key
            for key in self.running
            if json.loads(key)[:2] == [manifest["model"], manifest["adapter"]]
        ]:
            self.running.pop(key)[0].stop()

    def ps(self) -> dict[str, Any]:
        return {
            "models": [
                {"name": name, "model": name, "expires_at": str(keep_alive)}
                for _, name, keep_alive in self.running.values()
            ]
        }

    def answer(
        self, name: str, messages: list[dict[str, str]], options: dict[str, Any], keep: Any = None
    ) -> dict[str, Any]:
        """text, finish and counts of one answer."""
        manifest, server = self.manifest(name), self.load(name, keep)
        if manifest["system"] and (not messages or messages[0]["role"] != "system"):
            messages = [{"role": "system", "content": manifest["system"]}, *messages]
        asked = SAMPLING | manifest["parameters"] | options
        body = {key: value for key, value in asked.items() if not key.startswith("num_")} | {
            "max_tokens": asked.get("num_predict", -1)
        }
        body |= with_adapters([1.0] * len(server.adapters))
        if numbers(self.version) >= (0, 30) and not manifest["template"]:
            path, body["messages"] = "chat/completions", messages
        else:
            path, body["prompt"] = (
                "completions",
                render(
                    manifest["template"] or "{{ range .Messages }}{{ .Content }}{{ end }}", messages
                ),
            )
        reply = httpx2.post(f"{server.url}/{path}", json=body, timeout=60)
        if reply.status_code != 200:
            raise Refused(reply.status_code, reply.text)
        completion = reply.json()
        choice = completion["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return {"text": text, "finish": choice["finish_reason"], "usage": completion["usage"]}


class Handler(BaseHTTPRequestHandler):
    ollama: OllamaEmulator

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.ollama.seen.append(f"{self.command} {self.path}")
        try:
            self._route(self.command, self.path)
        except Refused as refused:
            self._json({"error": str(refused)}, refused.status)
        except (ConnectionAbortedError, BrokenPipeError):
            self.connection.close()

    def _route(self, method: str, path: str) -> None:
        if path.startswith("/api/blobs/"):
            digest = path.removeprefix("/api/blobs/")
            status = (
                (200 if self.ollama.blob(digest).exists() else 404)
                if method == "HEAD"
                else self.ollama.keep(digest, self._chunks())
            )
            return self._send(b"", status)
        if path == "/":
            return self._send(b"" if method == "HEAD" else b"Ollama is running", 200)
        plain = {
            "/api/version": lambda: {"version": self.ollama.version},
            "/api/tags": self.ollama.tags,
            "/api/ps": self.ollama.ps,
            "/v1/models": self._models,
        }
        if path in plain:
            return self._json(plain[path]())
        body = json.loads(b"".join(self._chunks()))
        actions = {
            "/api/create": self._create,
            "/api/generate": self._generate,
            "/api/chat": self._chat,
            "/v1/chat/completions": self._openai,
        }
        if path in actions:
            return actions[path](body)
        if path == "/api/show":
            return self._json(self.ollama.show(body["model"]))
        if path == "/api/copy":
            self.ollama.copy(body["source"], body["destination"])
        elif path == "/api/delete" and method == "DELETE":
            self.ollama.delete(body["model"])
        else:
            raise Refused(404, "404 page not found")
        return self._send(b"", 200)

    def _create(self, body: dict[str, Any]) -> None:
        self.ollama.check_create(body)
        if body.get("stream") is False:
            last: dict[str, Any] = {}
            for last in self.ollama.create(body):
                if "error" in last:
                    raise Refused(400, last["error"])
            return self._json(last)
        self._start("application/x-ndjson")
        try:
            for line in self.ollama.create(body):
                self._line(line)
        except Refused as refused:
            self._line({"error": str(refused)})

    def _generate(self, body: dict[str, Any]) -> None:
        name, keep = body["model"], body.get("keep_alive")
        if not body.get("prompt"):
            self.ollama.unload(name) if keep == 0 else self.ollama.load(name, keep)
            return self._json(
                {
                    "model": name,
                    "response": "",
                    "done": True,
                    "done_reason": "unload" if keep == 0 else "load",
                }
            )
        answer = self.ollama.answer(
            name, [{"role": "user", "content": body["prompt"]}], body.get("options") or {}, keep
        )
        return self._stream(body, [{"response": answer["text"]}], {"response": ""}, answer)

    def _chat(self, body: dict[str, Any]) -> None:
        answer = self.ollama.answer(
            body["model"], body["messages"], body.get("options") or {}, body.get("keep_alive")
        )
        part = {"message": {"role": "assistant", "content": answer["text"]}}
        return self._stream(body, [part], {"message": {"role": "assistant", "content": ""}}, answer)

    def _stream(
        self,
        body: dict[str, Any],
        parts: list[dict[str, Any]],
        end: dict[str, Any],
        answer: dict[str, Any],
    ) -> None:
        header = {"model": body["model"], "created_at": "2026-11-01T00:00:00Z"}
        usage = {
            "prompt_eval_count": answer["usage"]["prompt_tokens"],
            "eval_count": answer["usage"]["completion_tokens"],
        }
        last = {"done": True, "done_reason": answer["finish"], **usage}
        if body.get("stream", True) is False:
            return self._json(header | parts[0] | last)
        self._start("application/x-ndjson")
        for part in parts:
            self._line(header | part | {"done": False})
        return self._line(header | end | last)

    def _openai(self, body: dict[str, Any]) -> None:
        options = {"temperature": body.get("temperature", 1.0), "top_p": body.get("top_p", 1.0)}
        options |= {
            key: body[key]
            for key in ("stop", "seed", "frequency_penalty", "presence_penalty")
            if key in body
        }
        options |= {"num_predict": body["max_tokens"]} if "max_tokens" in body else {}
        answer = self.ollama.answer(body["model"], body["messages"], options)
        header = {
            "id": "chatcmpl-1",
            "created": 0,
            "model": body["model"],
            "system_fingerprint": "fp_ollama",
        }
        message = {"role": "assistant", "content": answer["text"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": answer["finish"]}
            return self._json(
                {
                    **header,
                    "object": "chat.completion",
                    "choices": [choice],
                    "usage": answer["usage"],
                }
            )
        self._start("text/event-stream")
        for delta, finish in (
            (message, None),
            ({"role": "assistant", "content": ""}, answer["finish"]),
        ):
            chunk = {
                **header,
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            }
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def _models(self) -> dict[str, Any]:
        return {
            "object": "list",
            "data": [
                {"id": model["name"], "object": "model"} for model in self.ollama.tags()["models"]
            ],
        }

    def _chunks(self) -> Any:
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left and (chunk := self.rfile.read(min(left, 1 << 16))):
            left -= len(chunk)
            yield chunk

    def _start(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def _line(self, line: dict[str, Any]) -> None:
        self.wfile.write(json.dumps(line).encode() + b"\n")
        self.wfile.flush()

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), status, "application/json")

    def _send(self, content: bytes, status: int, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass
