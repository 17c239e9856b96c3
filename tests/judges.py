"""Scripts of a judging model behind `FakeServer`: what it is told, and what it answers."""

import json
import re

from thumbwheel.llm.fake import Reply


def question_in(request):
    """What the judge was told: the nonce, and both answers as it finds them."""
    system, user = request.body["messages"]
    return re.search(r'"nonce": "(\w+)"', system["content"])[1], json.loads(user["content"])[
        "answers"
    ]


def reply(text):
    return Reply({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


def verdict(nonce, winner):
    return reply(json.dumps({"nonce": nonce, "winner": winner}))


def prefers_longer(request):
    nonce, answers = question_in(request)
    first, second = len(answers["1"]), len(answers["2"])
    return verdict(nonce, "tie" if first == second else "1" if first > second else "2")


def always_the_first(request):
    return verdict(question_in(request)[0], "1")


class Flaky:
    """Finds the longer answer better, and is down from the `until`th question on."""

    def __init__(self, until):
        self.until, self.asked = until, 0

    def __call__(self, request):
        self.asked += 1
        return Reply("busy", status=500) if self.asked > self.until else prefers_longer(request)
