"""The reply of every protocol is understood from its bytes, wherever they are cut."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zlib
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorded_replies import (
    ANTHROPIC,
    EMBEDDINGS,
    OPENAI_CHAT,
    REPLIES,
    STREAM,
    WHOLE_CHAT,
    Recorded,
    chat_chunk,
    sse,
)
from tests.scrambled_json import json_values, scrambled
from thumbwheel.gateway.event_stream import (
    MAX_DECODED,
    MAX_EVENT,
    JsonTexts,
    ServerSentEvents,
)
from thumbwheel.gateway.protocol import MAX_WHOLE, ReplyReader
from thumbwheel.gateway.protocols import PROTOCOLS
from thumbwheel.gateway.reply_draft import CLIENT_LEFT, MAX_TEXT, CallReply

SPLITS = 10_000 // len(REPLIES) + 1


def reader_of(recorded: Recorded, encoding: str = "") -> ReplyReader:
    stream = recorded.content_type == STREAM
    body = {"model": "m", "stream": stream, **recorded.request}
    call = PROTOCOLS[recorded.protocol].request(body, {})
    headers = {"content-type": recorded.content_type, "content-encoding": encoding}
    return call.reply_reader(recorded.status, headers)


def read(recorded: Recorded, *pieces: bytes, encoding: str = "") -> CallReply:
    reader = reader_of(recorded, encoding)
    for piece in pieces or (recorded.body,):
        reader.feed(piece)
    return reader.finish()


def cut(body: bytes, chance: random.Random) -> list[bytes]:
    """`body` in pieces: a few, many, or single bytes."""
    count = chance.choice((1, 2, 5, 40, len(body)))
    cuts = sorted(chance.randrange(len(body) + 1) for _ in range(count))
    if count == len(body):
        cuts = list(range(1, len(body)))
    return [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]


@pytest.mark.parametrize("recorded", REPLIES, ids=lambda recorded: recorded.name)
def test_a_reply_says_what_it_says(recorded: Recorded) -> None:
    reply = asdict(read(recorded))
    usage = {name: count for name, count in reply["usage"].items() if count is not None}
    expected = {"complete": True, "error": None, "problem": None, **recorded.expected}
    assert {name: reply[name] for name in expected if name != "usage"} == {
        name: value for name, value in expected.items() if name != "usage"
    }
    assert usage == expected.get("usage", usage)


@pytest.mark.parametrize("recorded", REPLIES, ids=lambda recorded: recorded.name)
def test_a_reply_is_the_same_however_it_is_cut(recorded: Recorded) -> None:
    whole = read(recorded)
    chance = random.Random(recorded.name)
    for _ in range(SPLITS):
        pieces = cut(recorded.body, chance)
        assert read(recorded, *pieces) == whole, pieces


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("recorded", [OPENAI_CHAT, WHOLE_CHAT], ids=lambda recorded: recorded.name)
def test_a_compressed_reply_is_unpacked(recorded: Recorded, encoding: str) -> None:
    compress = gzip.compress if encoding == "gzip" else zlib.compress
    pieces = cut(compress(recorded.body), random.Random(1))
    assert read(recorded, *pieces, encoding=encoding) == read(recorded)


def test_an_encoding_that_is_not_read_is_no_error_of_the_call() -> None:
    reply = read(OPENAI_CHAT, b"\x1b...", encoding="br")
    assert reply.problem == "its content-encoding 'br' is not read here"
    assert (reply.error, reply.complete) == (None, False)


@pytest.mark.parametrize("recorded", REPLIES, ids=lambda recorded: recorded.name)
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_hostile_bytes_raise_nothing(recorded: Recorded, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(recorded.body)))
    end = data.draw(st.integers(start, len(recorded.body)))
    garbage = data.draw(st.binary(max_size=60) | st.sampled_from([b'"\\ud800"', b"[" * 5000]))
    reply = read(recorded, recorded.body[:start], garbage, recorded.body[end:])
    json.dumps(asdict(reply), ensure_ascii=False, allow_nan=False).encode()


JSON = json_values("\ud83d", "\x00", "text", "tool_use", "function_call", "message")


@pytest.mark.parametrize("recorded", REPLIES, ids=lambda recorded: recorded.name)
@given(st.lists(JSON, min_size=1, max_size=6), st.integers())
@settings(max_examples=60, deadline=None)
def test_hostile_values_raise_nothing(recorded: Recorded, junk: list[Any], seed: int) -> None:
    chance = random.Random(seed)
    pieces = []
    for line in recorded.body.split(b"\n"):
        prefix = b"data: " if line.startswith(b"data: ") else b""
        try:
            value = json.loads(line.removeprefix(prefix).removesuffix(b"\r"))
        except ValueError:
            pieces.append(line + b"\n")
        else:
            pieces.append(
                prefix + json.dumps(scrambled(value, chance, junk, 0.08)).encode() + b"\n"
            )
    reply = read(recorded, *pieces)
    json.dumps(asdict(reply), ensure_ascii=False, allow_nan=False).encode()


def test_the_client_left() -> None:
    reader = reader_of(OPENAI_CHAT)
    reader.feed(OPENAI_CHAT.body[: len(OPENAI_CHAT.body) // 2])
    reply = reader.finish(CLIENT_LEFT)
    assert reply.text is not None
    assert reply.text.startswith("Grüße")
    assert (reply.error, reply.cancelled, reply.complete) == (CLIENT_LEFT, True, False)


def test_a_client_that_leaves_after_the_end_has_the_whole_answer() -> None:
    reader = reader_of(OPENAI_CHAT)
    reader.feed(OPENAI_CHAT.body.removesuffix(b"data: [DONE]\n\n"))
    reply = reader.finish(CLIENT_LEFT)
    assert (reply.error, reply.cancelled, reply.complete) == (None, False, True)


def test_a_stream_that_ends_too_early_is_an_error() -> None:
    reader = reader_of(ANTHROPIC)
    reader.feed(ANTHROPIC.body[:1500])
    reply = reader.finish()
    assert reply.error == "the upstream ended its reply before the answer was complete"
    assert (reply.cancelled, reply.complete) == (False, False)


def test_a_first_token_is_no_role() -> None:
    reader = reader_of(OPENAI_CHAT)
    reader.feed(sse(chat_chunk({"role": "assistant", "content": ""})))
    assert not reader.has_token
    reader.feed(sse(chat_chunk({"content": "A"})))
    assert reader.has_token


def test_a_server_that_counts_every_call_as_the_first() -> None:
    calls = [{"index": 0, "id": f"c{n}", "function": {"name": f"f{n}"}} for n in range(3)]
    body = sse(*(chat_chunk({"tool_calls": [call]}) for call in calls), done=True)
    names = [call["function"]["name"] for call in read(OPENAI_CHAT, body).tool_calls]
    assert names == ["f0", "f1", "f2"]


def test_events_without_an_empty_line_between_them() -> None:
    body = OPENAI_CHAT.body.replace(b"\n\n", b"\n")
    assert read(OPENAI_CHAT, body).text == read(OPENAI_CHAT).text


def test_the_last_event_counts_where_the_stream_ends_within_its_line() -> None:
    events = ServerSentEvents()
    assert events.feed(b'data: {"n": 1}\n\ndata: {"n": 2}') == [b'{"n": 1}']
    assert events.rest() == [b'{"n": 2}']
    lines = JsonTexts()
    assert lines.feed(b'{"n": 1}\n{"n": 2}') == [b'{"n": 1}']
    assert lines.rest() == [b'{"n": 2}']


def test_half_a_surrogate_pair_in_each_of_two_chunks_is_one_character() -> None:
    body = b"".join(
        b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % half
        for half in (b"\\ud83d", b"\\udc4b", b"\\ud83d")
    )
    assert read(OPENAI_CHAT, body).text == "👋\ufffd"


def test_an_event_that_is_too_long_is_passed_over() -> None:
    reader = reader_of(OPENAI_CHAT)
    reader.feed(sse(chat_chunk({"content": "A"})) + b"data: ")
    for _ in range(MAX_EVENT // 100_000 + 2):
        reader.feed(b"x" * 100_000)
    reader.feed(b"\n\n" + sse(chat_chunk({"content": "B"}, "stop"), done=True))
    reply = reader.finish()
    assert (reply.text, reply.truncated, reply.complete) == ("AB", True, False)


def test_a_stream_that_never_ends_takes_no_more_memory_than_what_is_kept() -> None:
    reader = reader_of(OPENAI_CHAT)
    chunk = sse(chat_chunk({"content": "0123456789" * 100}, logprobs=logprobs_of(100)))
    tracemalloc.start()
    for _ in range(2 * MAX_TEXT // 1000):
        reader.feed(chunk)
    reply = reader.finish()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reply.text is not None
    assert (len(reply.text), reply.truncated, reply.complete) == (MAX_TEXT - 2000, True, False)
    assert peak < 20 << 20


def logprobs_of(count: int) -> dict[str, Any]:
    return {"content": [{"id": 7, "token": "x", "logprob": -0.5}] * count}


def test_a_bomb_is_not_unpacked() -> None:
    packer = zlib.compressobj(9, wbits=31)
    zeros = b"\x00" * (1 << 20)
    bomb = b"".join(packer.compress(zeros) for _ in range((MAX_DECODED >> 20) + 2)) + packer.flush()
    tracemalloc.start()
    reply = read(WHOLE_CHAT, bomb, encoding="gzip")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reply.problem is not None
    assert reply.complete is False
    assert peak < 8 * MAX_WHOLE


def test_vectors_are_not_kept() -> None:
    reader = reader_of(EMBEDDINGS)
    reader.feed(EMBEDDINGS.body)
    assert "0.25" not in json.dumps(asdict(reader.finish()))
