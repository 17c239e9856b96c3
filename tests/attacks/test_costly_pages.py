"""Texts and conversations of strangers that cost far more than their length to show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.worlds.gateway_world import opened_home
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.server.pages.markdown import MOST_OF_REQUEST, markdown, markdown_of_all
from thumbwheel.server.pages.traces import MOST_OF_CHAT, MOST_OF_MANY, MOST_TURNS
from thumbwheel.server.serve import assembled

AGENT = "support"
WIDE_TABLE = "|a" * 160 + "|\n" + "|-" * 160 + "|\n" + "|\n" * 410
"""A heading of 160 columns over 410 rows, all of whose 65,600 cells are left out."""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A client with the token of the home, and a function that records a conversation."""
    with (
        opened_home(tmp_path / "home") as ws,
        assembled(ws, "127.0.0.1", drain_every=3600) as application,
    ):
        client = TestClient(application, base_url="http://127.0.0.1:8787")
        token = ws.home.access_token.read_text().strip()
        client.headers["authorization"] = f"Bearer {token}"

        def record(messages: list[dict[str, str]]) -> None:
            trace = {"id": "t1", "agent": AGENT, "input": messages, "output": "Yes."}
            assert client.post("/api/traces", json=trace).status_code == 202
            drain_inbox(ws)

        yield SimpleNamespace(client=client, record=record)


def page_of(owner: SimpleNamespace) -> str:
    accepts = {"accept": "text/html"}
    response = owner.client.get(f"/agents/{AGENT}/traces/t1", headers=accepts)
    assert response.status_code == 200
    text: str = response.text
    return text


def test_a_table_is_not_filled_up_without_end() -> None:
    assert len(markdown(WIDE_TABLE)) < 40_000
    # a table that leaves out some cells is still one
    table = markdown("| a | b | c |\n|---|---|---|\n| 1 |\n| 2 | 3 |\n")
    assert table.count("<td>") == 6


def test_a_request_for_markdown_renders_a_bounded_text() -> None:
    text = "*a* " * 20_000
    html = markdown_of_all([text] * 10)
    rendered = [part for part in html if "<em>" in part]
    assert len(rendered) == MOST_OF_REQUEST // len(text)
    assert all(part.startswith("<pre>*a* ") for part in html[len(rendered) :])
    assert "<em>" in markdown_of_all([text, "*a*"])[1]


def test_a_long_conversation_is_shown_by_its_newest_messages(owner: SimpleNamespace) -> None:
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": f"*{number}* " + "word " * 1000}
        for number in range(2 * MOST_TURNS)
    ]
    owner.record(messages)
    page = page_of(owner)
    assert f"{MOST_TURNS} earlier messages" in page
    assert f'data-whole="input.{MOST_TURNS}.content"' in page
    assert f"*{MOST_TURNS - 1}*" not in page
    assert f"<em>{2 * MOST_TURNS - 1}</em>" in page
    assert len(page) < 2 * (MOST_OF_CHAT + MOST_TURNS * MOST_OF_MANY) + 200_000


def test_messages_with_wide_tables_make_no_large_page(owner: SimpleNamespace) -> None:
    table: Any = {"role": "assistant", "content": WIDE_TABLE}
    owner.record([table] * 100 + [{"role": "user", "content": "Hello"}])
    assert len(page_of(owner)) < 2_000_000
