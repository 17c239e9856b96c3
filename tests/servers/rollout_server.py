"""A script for the fake server: evenly drawn tokens, a distribution of its own, with their
log-probabilities in the form of vLLM."""

from __future__ import annotations

import math
import random
from typing import Any

from thumbwheel.llm.fake import Reply, Request

LOW, HIGH = 5, 300


class Uniform:
    """Tokens from LOW up to HIGH; `silent` keeps the log-probabilities back."""

    silent = False

    def __call__(self, request: Request) -> Reply:
        chance, body = random.Random(request.body["seed"]), request.body
        choices = [self._choice(chance, body["max_tokens"]) for _ in range(body["n"])]
        return Reply({"choices": choices, "usage": {"prompt_tokens": len(body["prompt"])}})

    def _choice(self, chance: random.Random, length: int) -> dict[str, Any]:
        ids = [chance.randrange(LOW, HIGH) for _ in range(length)]
        logprobs = {
            "tokens": [str(token) for token in ids],
            "token_logprobs": [-math.log(HIGH - LOW)] * length,
        }
        return {"text": "", "token_ids": ids, "finish_reason": "length"} | (
            {} if self.silent else {"logprobs": logprobs}
        )
