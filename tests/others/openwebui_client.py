"""What people do in the pages of Open WebUI, by the API that the pages use."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

import httpx2


@dataclass(frozen=True)
class Answer:
    """A message of a model in a chat."""

    chat: str
    message: str
    text: str


class OpenWebUiClient:
    """Somebody who is signed in; `key` is an API key of theirs."""

    def __init__(self, url: str, email: str, password: str) -> None:
        self._client = httpx2.Client(base_url=url, timeout=60, trust_env=False)
        session = self.post("/api/v1/auths/signin", {"email": email, "password": password})
        self._client.headers["authorization"] = f"Bearer {session['token']}"
        self.user = str(session["id"])
        self.key = str(self.post("/api/v1/auths/api_key", None)["api_key"])

    def get(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()

    def post(self, path: str, body: Any) -> Any:
        return self._client.post(path, json=body).raise_for_status().json()

    def models(self) -> list[str]:
        """The models to choose from."""
        return [row["id"] for row in self.get("/api/models?refresh=true")["data"]]

    def ask(self, question: str, model: str, system: str | None = None) -> Answer:
        """Ask in a new chat, with a title, and wait for the answer."""
        question_id, answer_id = str(uuid.uuid4()), str(uuid.uuid4())
        known_chats = {row["id"] for row in self._newest_chats()}
        message = {
            "id": question_id,
            "parentId": None,
            "childrenIds": [answer_id],
            "role": "user",
            "content": question,
            "timestamp": int(time.time()),
            "models": [model],
        }
        messages = [{"role": "user", "content": question}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        body = {
            "model": model,
            "stream": True,
            "messages": messages,
            "params": {"temperature": 0},
            "parent_id": None,
            "id": answer_id,
            "user_message": message,
            "background_tasks": {"title_generation": True},
        }
        self.post("/api/chat/completions", body)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for row in self._newest_chats():
                if row["id"] in known_chats:
                    continue
                history = self.chat(row["id"])["chat"]["history"]
                answer = history["messages"].get(answer_id, {})
                if answer.get("done"):
                    return Answer(row["id"], answer_id, answer["content"])
            time.sleep(0.05)
        raise AssertionError(f"no answer to {question!r}")

    def _newest_chats(self) -> list[dict[str, Any]]:
        return list(self.get("/api/v1/chats/?page=1&include_pinned=true&include_folders=true"))

    def chat(self, chat_id: str) -> dict[str, Any]:
        return dict(self.get(f"/api/v1/chats/{chat_id}"))

    def edit(self, answer: Answer, text: str) -> None:
        """Put another text in the place of an answer."""
        chat = self.chat(answer.chat)["chat"]
        message = chat["history"]["messages"][answer.message]
        message |= {"originalContent": message["content"], "content": text}
        self.post(f"/api/v1/chats/{answer.chat}", {"chat": chat})

    def rate(self, answer: Answer, rating: int, rating_id: str | None = None) -> str:
        """Click a thumb, or another one; the id of the rating."""
        chat = self.chat(answer.chat)
        model = chat["chat"]["history"]["messages"][answer.message]["model"]
        body = {
            "type": "rating",
            "data": {"rating": rating, "model_id": model, "reason": "", "comment": ""},
            "meta": {
                "arena": False,
                "model_id": model,
                "message_id": answer.message,
                "message_index": 2,
                "chat_id": answer.chat,
            },
            "snapshot": {"chat": chat},
        }
        path = f"feedback/{rating_id}" if rating_id else "feedback"
        return str(self.post(f"/api/v1/evaluations/{path}", body)["id"])
