"""An app that asks its model through the gateway and passes on what people say of the answer.

Start `thumbwheel serve` first, with an agent that answers (docs/14-gateway.md), then:

    python openai_app.py http://127.0.0.1:8787/a/support/v1 "How do I reset it?"

Only `base_url` differs from an app without Thumbwheel. Every reply has the id of its trace in a
header; feedback names that id, now or days later.
"""

from __future__ import annotations

import sys

from openai import OpenAI

import thumbwheel


def ask(client: OpenAI, question: str, customer: str) -> tuple[str, str]:
    """Return the answer and the id under which it is recorded."""
    reply = client.chat.completions.with_raw_response.create(
        model="support",
        messages=[{"role": "user", "content": question}],
        extra_headers={"x-thumbwheel-subject": customer},
    )
    answer = reply.parse().choices[0].message.content or ""
    return answer, reply.headers["x-thumbwheel-trace"]


def main(base_url: str, question: str, customer: str = "customer-17") -> None:
    """Ask once, and record a thumb up for the answer."""
    client = OpenAI(base_url=base_url, api_key="any")
    answer, trace = ask(client, question, customer)
    print(answer)
    thumbwheel.feedback("support", trace, thumb=True, rater=customer)
    thumbwheel.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
