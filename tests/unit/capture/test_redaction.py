"""Nothing that redaction looks for reaches a file, wherever it stands and however it came."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from recorded_replies import STREAM, chat_chunk, sse
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.redact import CaptureConfig, Redactor
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.seal import Seal
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.gateway.protocols import PROTOCOLS
from thumbwheel.gateway.record import Timing, trace_line
from thumbwheel.gateway.reply_draft import MAX_TEXT
from thumbwheel.sdk.segment import Segment

SECRETS = {
    "email": "jane.doe@mail.example.org",
    "card": "4111 1111 1111 1111",
    "iban": "DE89 3704 0044 0532 0130 00",
    "phone": "+49 30 1234567",
    "api key": "sk-proj-a1b2c3d4e5f6g7h8i9j0",
    "credential": "Bearer abcdefghij0123456789",
}
TIMING = Timing(datetime(2026, 1, 5, 8, 30, tzinfo=UTC), 0.25, 1.5)


def redactor(mode: str, **settings: Any) -> Redactor:
    return Redactor(CaptureConfig(redaction=mode, **settings), Seal(b"s" * 32))


def line(**fields: Any) -> dict[str, Any]:
    return {
        "agent": "filer",
        "type": "trace",
        "id": "t1",
        "input": [{"role": "user", "content": "Hi"}],
        "output": "Ho",
        "steps": [{"kind": "llm", "status": "ok", "token_ids": [1], "token_logprobs": [-0.5]}],
        **fields,
    }


@pytest.mark.parametrize("kind", SECRETS)
def test_each_kind_is_replaced_by_a_mark_and_counted(kind: str) -> None:
    clean = redactor("on").line(line(output=f"It is {SECRETS[kind]}, ok?"))
    mark = "[secret removed]" if kind in ("api key", "credential") else f"[{kind} removed]"
    expected = f"It is {mark}, ok?"
    assert clean["output"] == expected.replace("[secret", "Bearer [secret", kind == "credential")
    assert clean["metadata"] == {"redacted": {kind: 1}}


def test_off_changes_nothing() -> None:
    dirty = line(output=" ".join(SECRETS.values()))
    assert redactor("off").line(dirty) is dirty


def test_what_holds_nothing_stays_as_it_is() -> None:
    clean = line(session="s1", metadata={"page": 3, "ratio": 0.5, "tags": ["a", None, True]})
    for mode in ("on", "strict"):
        assert redactor(mode).line(clean) == clean


@pytest.mark.parametrize("key", ["occurred_at", "received_at"])
def test_no_time_of_a_line_is_taken_for_a_number(key: str) -> None:
    """About every twentieth time of day has the digits of a card."""
    strict = redactor("strict")
    for microsecond in range(0, 1_000_000, 1_009):
        time = datetime(2026, 11, 25, 21, 22, 32, microsecond, tzinfo=UTC).isoformat()
        assert strict.line(line(**{key: time}))[key] == time


def test_token_ids_go_with_the_answer_that_they_spell_out() -> None:
    for mode in ("on", "strict"):
        (step,) = redactor(mode).line(line(output=SECRETS["email"]))["steps"]
        assert step == {"kind": "llm", "status": "ok"}
        (step,) = redactor(mode).line(line(metadata={"mail": SECRETS["email"]}))["steps"]
        assert step["token_ids"] == [1]


def test_arguments_of_tools_are_read_as_json() -> None:
    arguments = '{"to": "jane.doe\\u0040mail.example.org", "password": "quiet-Zx81", "n": 1.50}'
    call = {"type": "function", "function": {"name": "send", "arguments": arguments}}
    dirty = line(
        input=[{"role": "assistant", "content": None, "tool_calls": [call]}],
        output="I used quiet-Zx81.",
    )
    clean = redactor("on").line(dirty)
    function = clean["input"][0]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == {
        "to": "[email removed]",
        "password": "[secret removed]",
        "n": 1.5,
    }
    assert clean["output"] == "I used [secret removed]."
    assert clean["metadata"]["redacted"] == {"email": 1, "secret": 2}


def test_arguments_without_anything_keep_their_bytes() -> None:
    call = {"function": {"name": "send", "arguments": '{ "n":1.50,"a" : "\\u00e9"}'}}
    dirty = line(input=[{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert redactor("strict").line(dirty) == dirty


def test_a_definition_may_name_a_parameter_password() -> None:
    properties = {"password": {"type": "string", "description": "Of the user"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": properties}}]
    dirty = line(steps=[{"kind": "llm", "input": {"tools": tools}}])
    assert redactor("strict").line(dirty) == dirty


def test_a_role_is_never_taken_for_a_secret() -> None:
    clean = redactor("on").line(line(metadata={"password": "assistant"}))
    dirty = line(input=[{"role": "assistant", "content": "x"}], metadata={"password": "assistant"})
    assert redactor("on").line(dirty)["input"] == dirty["input"]
    assert clean["metadata"]["password"] == "[secret removed]"


def test_ids_stay_by_on_and_become_the_same_hash_by_strict() -> None:
    names = {"session": "anna@example.org", "subject": "anna@example.org", "parent": "p1"}
    clean = redactor("on").line(line(**names))
    assert {key: clean[key] for key in names} == names
    clean = redactor("strict").line(line(**names))
    assert clean["session"] == clean["subject"]
    assert clean["session"].startswith("hash-")
    assert clean["parent"] == "p1"
    other_home = Redactor(CaptureConfig(redaction="strict"), Seal(b"t" * 32))
    assert other_home.line(line(**names))["session"] != clean["session"]


@pytest.mark.parametrize(
    "text",
    [
        "4111\n1111\n1111\n1111",
        "4111.1111.1111.1111",
        "４１１１１１１１１１１１１１１１",
        "41\u200b11111111111111",
        "jane.doe%40mail.example.org",
        "jane.doe&#64;mail.example.org",
        "jane.doe\\u0040mail.example.org",
        "jäne@exämple.org",
        base64.b64encode(b"mail jane.doe@mail.example.org").decode(),
        b"mail jane.doe@mail.example.org".hex(),
        "call 030 1234567",
        "(555) 123-4567",
        quote("DE89 3704 0044 0532 0130 00"),
        "8.8.8.8",
    ],
)
def test_strict_knows_other_spellings(text: str) -> None:
    clean = redactor("strict").line(line(output=f"a {text} b"))
    assert text not in clean["output"]
    assert sum(clean["metadata"]["redacted"].values()) >= 1


def test_addresses_are_personal_where_the_owner_says_so() -> None:
    dirty = line(output="from 8.8.8.8")
    assert redactor("on").line(dirty)["output"] == "from 8.8.8.8"
    clean = redactor("on", ip_addresses=True).line(dirty)
    assert clean["output"] == "from [ip address removed]"


def test_yaml_says_off_and_on_in_its_own_way() -> None:
    for word in ("off", "on", "strict"):
        values = yaml.safe_load(f"redaction: {word}")
        assert CaptureConfig.model_validate(values).redaction == word


def test_a_text_that_is_remembered_to_hold_nothing_is_searched_for_new_secrets() -> None:
    long = "a word and " * 40 + "quiet-Zx81"
    both = redactor("on")
    assert both.line(line(output=long))["output"] == long
    clean = both.line(line(output=long, metadata={"api_key": "quiet-Zx81"}))
    assert "quiet" not in clean["output"]


PLANTED = [*SECRETS.values(), "pa55-Wörd-quiet"]
EVERYTHING = " and ".join(SECRETS.values())


def planted_bodies(is_long: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests with all secrets in every place that a request has; with `is_long`, in the place
    where a text is cut too."""
    filling = "word " * 299_000 if is_long else ""
    arguments = json.dumps({"to": EVERYTHING, "password": "pa55-Wörd-quiet"})
    schema_ = {"type": "object", "description": EVERYTHING}
    function = {"name": "f", "description": EVERYTHING, "parameters": schema_}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    yield (
        "openai_chat",
        {
            "messages": [
                {"role": "system", "content": EVERYTHING},
                {"role": "user", "content": [{"type": "text", "text": EVERYTHING}], "name": "x"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "I saw pa55-Wörd-quiet"},
                {"role": "user", "content": filling + EVERYTHING * 30},
            ],
            "tools": [{"type": "function", "function": function}],
            "stop": [EVERYTHING],
            "response_format": {"schema": {EVERYTHING: EVERYTHING}},
            "user": SECRETS["email"],
            "metadata": {"note": EVERYTHING, "session_id": SECRETS["card"]},
        },
    )
    yield (
        "anthropic_messages",
        {
            "system": EVERYTHING,
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c", "content": EVERYTHING}],
                },
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c", "input": {"to": EVERYTHING}}],
                },
            ],
            "tools": [{"name": "f", "input_schema": schema_}],
            "metadata": {"user_id": SECRETS["email"]},
        },
    )
    yield "openai_responses", {"instructions": EVERYTHING, "input": EVERYTHING}
    yield "openai_completions", {"prompt": [EVERYTHING, [1, 2, 3]]}
    yield "ollama_generate", {"prompt": EVERYTHING, "options": {"stop": [EVERYTHING]}}


def planted_reply(is_long: bool) -> bytes:
    """A stream in which every secret is cut over several events, and one over the longest text."""
    arguments = json.dumps({"mail": EVERYTHING})
    events = [chat_chunk({"reasoning_content": piece}) for piece in pieces_of(EVERYTHING)]
    events += [chat_chunk({"content": piece}) for piece in pieces_of(EVERYTHING + " ")]
    events += [
        chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        for piece in pieces_of(arguments)
    ]
    if is_long:
        used = 2 * len(EVERYTHING) + len(arguments) + 1
        events.append(chat_chunk({"content": "x " * ((MAX_TEXT - used - 10) // 2)}))
        events.append(chat_chunk({"content": SECRETS["card"]}))
    return sse(*events, {"error": {"message": EVERYTHING}})


def pieces_of(text: str) -> list[str]:
    return [text[start : start + 3] for start in range(0, len(text), 3)]


def test_without_redaction_the_secrets_would_be_seen(tmp_path: Path) -> None:
    (name, body), *_ = planted_bodies(is_long=False)
    (dirty, _) = recorded(name, body, {}, "t1", is_long=False)
    (tmp_path / "line").write_text(json.dumps(dirty, ensure_ascii=False))
    assert files_with_secrets(tmp_path) == {"line": sorted(PLANTED)}


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_strict_lets_no_byte_of_a_secret_into_any_file(tmp_path: Path, is_long: bool) -> None:
    headers = {
        "x-thumbwheel-metadata": json.dumps({"note": EVERYTHING, "number": 4111111111111111}),
        "x-thumbwheel-feedback-id": SECRETS["email"],
        "x-openwebui-message-id": EVERYTHING,
    }
    ids = set()
    with Workspace.open(Home.at(tmp_path), Sources({}, "none", {})) as ws:
        segment = Segment(ws.home.inbox)
        for number, (name, body) in enumerate(planted_bodies(is_long)):
            trace_id = f"t{number}"
            for dirty in recorded(name, body, headers, trace_id, is_long):
                clean = redactor("strict").line(dirty)
                ids.add(clean["id"])
                segment.append(json.dumps(clean, ensure_ascii=False).encode()).result()
        segment.close()
        in_inbox = files_with_secrets(tmp_path)
        messages = drain_inbox(ws)
        with ws.db.read() as connection:
            stored = {row.external_id for row in connection.execute(schema.traces.select())}
    assert stored == ids, messages
    assert len(stored) == 10
    assert in_inbox == {}
    assert files_with_secrets(tmp_path) == {}


def recorded(
    name: str, body: Mapping[str, Any], headers: Mapping[str, str], trace_id: str, is_long: bool
) -> Iterator[dict[str, Any]]:
    """The lines of a call that is answered, and of one that is refused with an echo."""
    call = PROTOCOLS[name].request({"model": EVERYTHING, "stream": True, **body}, headers)
    chat = PROTOCOLS["openai_chat"].request({"model": "m", "stream": True}, {})
    reader = chat.reply_reader(200, {"content-type": STREAM})
    reply_bytes = planted_reply(is_long and name == "openai_chat")
    chance = random.Random(1)
    while reply_bytes:
        size = chance.choice((1, 7, 100, 1000, 100_000))
        reader.feed(reply_bytes[:size])
        reply_bytes = reply_bytes[size:]
    yield trace_line(call, reader.finish(), None, TIMING, agent="filer", trace_id=trace_id)
    refused = call.reply_reader(400, {"content-type": "text/html"})
    refused.feed(f"<p>{'bad ' * 119}{EVERYTHING}</p>".encode())
    refused_id = f"{trace_id} {SECRETS['email']}"
    yield trace_line(call, refused.finish(), None, TIMING, agent="filer", trace_id=refused_id)


def files_with_secrets(folder: Path) -> dict[str, list[str]]:
    """File -> the secrets of which a piece of eight characters is in it."""
    needles = {}
    for secret in PLANTED:
        for start in range(len(secret) - 7):
            piece = secret[start : start + 8]
            needles[piece.encode()] = secret
            needles[json.dumps(piece)[1:-1].encode()] = secret
    needles[b"41111111"] = SECRETS["card"]
    dirty: dict[str, list[str]] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            hits = sorted({secret for needle, secret in needles.items() if needle in data})
            if hits:
                dirty[path.name] = hits
    return dirty
