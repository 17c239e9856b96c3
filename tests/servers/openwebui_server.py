"""An Open WebUI for tests: the part of its API that an import reads, in the shapes, orders and
statuses of 0.12.4. `make test-openwebui` runs the real one."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE, CHATS_PAGE = 30, 60
START_PAGE = "<!doctype html>\n<html lang=en><head><title>Open WebUI</title></head></html>"
EXPIRED = "Your session has expired or the token is invalid. Please sign in again."
NO_PERMISSION = "You do not have permission to access this resource."
NO_SUCH = "We could not find what you're looking for :/"


@dataclass(frozen=True)
class Reply:
    status: int
    content: Any
    """Text is sent as HTML, anything else as JSON."""


def refusal(status: int, detail: str) -> Reply:
    return Reply(status, {"detail": detail})


@dataclass
class OpenWebUi:
    """Use as a context manager. `faults`: path -> what it answers instead."""

    users: dict[str, str] = field(default_factory=lambda: {"ann": "admin", "bob": "user"})
    """Id -> role; the key of a user is sk- and the id."""
    chats: dict[str, dict[str, Any]] = field(default_factory=dict)
    ratings: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: dict[str, Reply] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Paths, as they were asked for."""

    def __post_init__(self) -> None:
        handler = type("Bound", (Handler,), {"server_state": self})
        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._listener.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._listener.server_port}"

    def __enter__(self) -> OpenWebUi:
        threading.Thread(target=self._listener.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown()
        self._listener.server_close()

    def ask(
        self,
        chat_id: str,
        question: str,
        answers: dict[str, str],
        time: int,
        user: str = "ann",
    ) -> list[str]:
        """A question at the end of a chat, and what each model says to it; the ids of the
        answers."""
        chat = self.chats.setdefault(chat_id, _new_chat(chat_id, user, time))
        chat["updated_at"] = time
        history = chat["chat"]["history"]
        messages, parent = history["messages"], history["currentId"]
        question_id = f"{chat_id}-q{len(messages)}"
        answer_ids = [f"{question_id}-{model}" for model in answers]
        messages[question_id] = {
            "id": question_id,
            "parentId": parent,
            "childrenIds": answer_ids,
            "role": "user",
            "content": question,
            "timestamp": time,
            "models": list(answers),
            "user_id": user,
        }
        if parent:
            messages[parent]["childrenIds"].append(question_id)
        for answer_id, (model, text) in zip(answer_ids, answers.items(), strict=True):
            messages[answer_id] = {
                "id": answer_id,
                "parentId": question_id,
                "childrenIds": [],
                "role": "assistant",
                "content": text,
                "done": True,
                "model": model,
                "timestamp": time,
                "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}],
            }
        history["currentId"] = answer_ids[0]
        return answer_ids

    def rate(self, chat_id: str, message_id: str, rating: int, time: int, user: str = "ann") -> str:
        """A rating of an answer, or its change; the id."""
        chat = self.chats[chat_id]
        messages = chat["chat"]["history"]["messages"]
        message = messages[message_id]
        siblings = messages[message["parentId"]]["childrenIds"]
        others = [messages[name]["model"] for name in siblings if name != message_id]
        rating_id = f"rating-{message_id}"
        earlier = self.ratings.get(rating_id, {"created_at": time})
        self.ratings[rating_id] = {
            "id": rating_id,
            "user_id": user,
            "version": 0,
            "type": "rating",
            "data": {
                "rating": rating,
                "model_id": message["model"],
                "sibling_model_ids": others or None,
                "reason": "accurate_information",
                "comment": "",
                "tags": ["forms"],
                "details": {},
            },
            "meta": {
                "arena": False,
                "model_id": message["model"],
                "message_id": message_id,
                "message_index": 2,
                "chat_id": chat_id,
            },
            "snapshot": {"chat": json.loads(json.dumps(chat))},
            "created_at": earlier["created_at"],
            "updated_at": time,
        }
        return rating_id

    def answer(self, path: str, parameters: dict[str, str], authorization: str) -> Reply:
        """What it answers to a GET."""
        self.requests.append(path)
        if path in self.faults:
            return self.faults[path]
        if path == "/api/version":
            return Reply(200, {"version": "0.12.4", "deployment_id": ""})
        user = authorization.removeprefix("Bearer sk-")
        is_api = path.startswith("/api/v1/")
        if is_api and not authorization:
            return refusal(401, "Not authenticated")
        if is_api and user not in self.users:
            return refusal(401, EXPIRED)
        page = int(parameters.get("page", "1"))
        is_admin = self.users.get(user) == "admin"
        parts = path.removeprefix("/api/v1/").strip("/").split("/")
        answers = {"evaluations": self._evaluations, "chats": self._chats, "users": self._users}
        if is_api and parts[0] in answers:
            return answers[parts[0]](parts[1:], page, user, is_admin)
        return Reply(200, START_PAGE)

    def _chats(self, rest: list[str], page: int, user: str, is_admin: bool) -> Reply:
        match rest:
            case []:
                return Reply(200, self._listed(user, page))
            case ["list", "user", name]:
                if not is_admin:
                    return refusal(401, NO_PERMISSION)
                return Reply(200, self._listed(name, page))
            case [name]:
                chat = self.chats.get(name)
                if chat is None or (chat["user_id"] != user and not is_admin):
                    return refusal(401, NO_SUCH)
                return Reply(200, chat)
        return Reply(200, START_PAGE)

    def _users(self, rest: list[str], page: int, user: str, is_admin: bool) -> Reply:
        if not is_admin:
            return refusal(401, NO_PERMISSION)
        users = [{"id": name, "role": role} for name, role in self.users.items()]
        return Reply(200, {"users": users, "total": len(users)})

    def _listed(self, user: str, page: int) -> list[dict[str, Any]]:
        chats = [chat for chat in self.chats.values() if chat["user_id"] == user]
        chats.sort(key=lambda chat: chat["updated_at"], reverse=True)
        keys = ("id", "title", "updated_at", "created_at", "archived")
        rows = chats[(page - 1) * CHATS_PAGE : page * CHATS_PAGE]
        return [{key: chat[key] for key in keys} for chat in rows]

    def _evaluations(self, rest: list[str], page: int, user: str, is_admin: bool) -> Reply:
        newest = sorted(self.ratings.values(), key=lambda row: row["updated_at"], reverse=True)
        match rest:
            case ["feedbacks", "all", "ids"]:
                if not is_admin:
                    return refusal(401, NO_PERMISSION)
                keys = ("id", "user_id", "created_at", "updated_at")
                return Reply(200, [{key: row[key] for key in keys} for row in newest])
            case ["feedbacks", "user"]:
                own_rows = [row for row in newest if row["user_id"] == user]
                rows = own_rows[(page - 1) * PAGE : page * PAGE]
                items = [{**row, "snapshot": None, "user": {"id": user}} for row in rows]
                return Reply(200, {"items": items, "total": len(own_rows)})
            case ["feedback", name]:
                row = self.ratings.get(name)
                if row is None or (row["user_id"] != user and not is_admin):
                    return refusal(404, NO_SUCH)
                return Reply(200, row)
        return Reply(200, START_PAGE)


def _new_chat(chat_id: str, user: str, time: int) -> dict[str, Any]:
    return {
        "id": chat_id,
        "user_id": user,
        "title": "New Chat",
        "chat": {"id": chat_id, "history": {"currentId": None, "messages": {}}},
        "updated_at": time,
        "created_at": time,
        "archived": False,
        "meta": {"tags": []},
    }


class Handler(BaseHTTPRequestHandler):
    server_state: OpenWebUi

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        parameters = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        authorization = self.headers.get("authorization", "")
        reply = self.server_state.answer(parts.path, parameters, authorization)
        is_page = isinstance(reply.content, str)
        text = reply.content if is_page else json.dumps(reply.content)
        content = text.encode()
        self.send_response(reply.status)
        self.send_header("content-type", "text/html" if is_page else "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass
