"""Greedy answers of one model over HTTP: `python -m kennel.server FOLDER NAME PORT`."""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from kennel.target import TOKEN


class Model:
    """The model in `folder`."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def answer(self, messages: list[dict[str, Any]], most: int) -> dict[str, Any]:
        """The choice of a chat completion, with log-probabilities of the sampled tokens."""
        import torch

        prompt = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        with torch.inference_mode():
            output = self.model.generate(
                **prompt,
                max_new_tokens=most,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
        ids = output.sequences[0, prompt["input_ids"].shape[1] :]
        logps = torch.cat(output.logits).float().log_softmax(-1).gather(1, ids[:, None])[:, 0]
        ends = self.model.generation_config.eos_token_id
        stopped = int(ids[-1]) in (ends if isinstance(ends, list) else [ends])
        tokens = zip(ids.tolist(), logps.tolist(), strict=True)
        return {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": self.tokenizer.decode(ids, skip_special_tokens=True),
            },
            "finish_reason": "stop" if stopped else "length",
            "logprobs": {
                "content": [
                    {"token": self.tokenizer.decode([token]), "logprob": logp}
                    for token, logp in tokens
                ]
            },
        }


def handler(model: Model, name: str, token: str) -> type[BaseHTTPRequestHandler]:
    """Answers requests that have the token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({"object": "list", "data": [{"id": name, "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.headers.get("Authorization") != f"Bearer {token}":
                self._reply({"error": {"message": "wrong token"}}, 401)
                return
            choice = model.answer(body["messages"], body.get("max_tokens", 64))
            self._reply({"object": "chat.completion", "model": name, "choices": [choice]})

        def _reply(self, content: dict[str, Any], status: int = 200) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def main(folder: str, name: str, port: str) -> None:
    """Serve until the process is ended."""
    model = Model(folder)
    HTTPServer(("127.0.0.1", int(port)), handler(model, name, os.environ[TOKEN])).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
