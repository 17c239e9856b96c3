"""Servers that imitate an API carelessly: what can be understood is recorded as what was said; what
cannot is named, and is no complete answer, so that nobody learns it."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

from thumbwheel.gateway.protocols import PROTOCOLS
from thumbwheel.gateway.reply_draft import CallReply
from thumbwheel.gateway.translated_call import translated_reply

TODAY = '{"day": "today"}'
TOOLS = ("get_hours", "get_day", "hours", "parking", "aa")
BODY: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "max_tokens": 9,
    "thinking": {"type": "enabled"},
    "tools": [{"type": "function", "function": {"name": name}} for name in TOOLS],
}
NO_END = "the upstream ended its reply before the answer was complete"


def read(
    body: bytes,
    protocol: str = "openai_chat",
    kind: str = "text/event-stream",
    encoding: str = "",
    streams: bool = True,
) -> CallReply:
    """What is read of a reply, which is the same for each way of cutting it."""
    call = PROTOCOLS[protocol].request({**BODY, "stream": streams}, {})
    replies = []
    for size in (len(body) or 1, 1, 7):
        reader = call.reply_reader(200, {"content-type": kind, "content-encoding": encoding})
        for start in range(0, len(body), size):
            reader.feed(body[start : start + size])
        replies.append(reader.finish())
    assert replies[1:] == replies[:1] * 2
    return replies[0]


def calls_of(reply: CallReply) -> list[tuple[str, str]]:
    functions = [call["function"] for call in reply.tool_calls]
    return [(function["name"], function["arguments"]) for function in functions]


def sse(*values: Any, done: bool = True, before: str = "data: ", end: str = "\n\n") -> bytes:
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    texts += ["[DONE]"] if done else []
    return "".join(f"{before}{text}{end}" for text in texts).encode()


def lines(*values: Any) -> bytes:
    return "".join(f"{json.dumps(value)}\n" for value in values).encode()


def chunk(delta: Any = None, finish: Any = None, index: Any = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta or {}, "finish_reason": finish}], **more}


def call(index: Any = None, id: str | None = None, **function: Any) -> dict[str, Any]:
    """A chunk with a piece of a tool call."""
    piece = {"index": index, "id": id, "function": function}
    named = {key: value for key, value in piece.items() if value is not None}
    return chunk({"tool_calls": [named]})


END = chunk({}, "tool_calls")
SIX = (chunk({"content": "Until "}), chunk({"content": "six."}), chunk({}, "stop"))

CALLS: dict[str, tuple[Iterable[Any], list[tuple[str, str]]]] = {
    "a name in two pieces": (
        [call(0, "a", name="get_"), call(0, name="hours"), call(0, arguments=TODAY)],
        [("get_hours", TODAY)],
    ),
    "a name in two pieces, each with the id": (
        [call(0, "a", name="get_"), call(0, "a", name="hours"), call(0, "a", arguments=TODAY)],
        [("get_hours", TODAY)],
    ),
    "a name in three pieces with empty arguments": (
        [
            call(0, "a", name="get", arguments=""),
            call(0, name="_ho", arguments=""),
            call(0, name="urs", arguments=""),
            call(0, arguments=TODAY),
        ],
        [("get_hours", TODAY)],
    ),
    "a name in pieces without an index": (
        [call(None, "a", name="get_"), call(name="hours"), call(arguments=TODAY)],
        [("get_hours", TODAY)],
    ),
    "a name that grows": (
        [call(0, "a", name="get_"), call(0, "a", name="get_hours"), call(0, "a", arguments=TODAY)],
        [("get_hours", TODAY)],
    ),
    "a name of two equal pieces": (
        [call(0, "a", name="a"), call(0, name="a"), call(0, arguments=TODAY)],
        [("aa", TODAY)],
    ),
    "two tools without arguments on one index": (
        [call(0, name="hours"), call(0, name="parking")],
        [("hours", "{}"), ("parking", "{}")],
    ),
    "arguments that grow": (
        [
            call(0, "a", name="hours", arguments='{"day"'),
            call(0, "a", name="hours", arguments='{"day": "to'),
            call(0, "a", name="hours", arguments=TODAY),
        ],
        [("hours", TODAY)],
    ),
    "arguments that come whole at the end once more": (
        [
            call(0, "a", name="hours", arguments='{"day": '),
            call(0, arguments='"today"}'),
            call(0, "a", name="hours", arguments=TODAY),
        ],
        [("hours", TODAY)],
    ),
    "an empty object before the arguments": (
        [
            call(0, "a", name="hours", arguments="{}"),
            call(0, arguments='{"day": '),
            call(0, arguments='"today"}'),
        ],
        [("hours", TODAY)],
    ),
    "arguments as objects": (
        [call(0, "a", name="hours", arguments={}), call(0, "a", arguments={"day": "today"})],
        [("hours", TODAY)],
    ),
    "arguments that are encoded twice": (
        [call(0, "a", name="hours", arguments=json.dumps(TODAY))],
        [("hours", TODAY)],
    ),
    "pieces that are alike": (
        [
            call(0, "a", name="hours", arguments='{"n": {"n": '),
            call(0, arguments='{"n": {"n": '),
            call(0, arguments="1}}}}"),
        ],
        [("hours", '{"n": {"n": {"n": {"n": 1}}}}')],
    ),
    "indices as texts": (
        [
            call("0", "a", name="hours", arguments=""),
            call("1", "b", name="parking", arguments=""),
            call("0", arguments=TODAY),
            call("1", arguments="{}"),
        ],
        [("hours", TODAY), ("parking", "{}")],
    ),
    "a call without a function": (
        [chunk({"tool_calls": [{"index": 0, "id": "a", "name": "hours", "arguments": TODAY}]})],
        [("hours", TODAY)],
    ),
    "a call without a list": (
        [chunk({"tool_calls": {"id": "a", "function": {"name": "hours", "arguments": TODAY}}})],
        [("hours", TODAY)],
    ),
}


HOURS = {"name": "hours", "arguments": TODAY}
IN_BOTH_FORMS: dict[str, bytes] = {
    "whole": json.dumps(
        {
            "choices": [
                {
                    "message": {"tool_calls": [{"function": HOURS}], "function_call": HOURS},
                    "finish_reason": "tool_calls",
                }
            ]
        }
    ).encode(),
    "at once": sse(
        chunk({"tool_calls": [{"index": 0, "function": HOURS}], "function_call": HOURS}), END
    ),
    "in pieces": sse(
        *(
            chunk({"tool_calls": [{"index": 0, "function": piece}], "function_call": piece})
            for piece in (
                {"name": "hours", "arguments": ""},
                {"arguments": TODAY[:6]},
                {"arguments": TODAY[6:]},
            )
        ),
        END,
    ),
}


@pytest.mark.parametrize("name", IN_BOTH_FORMS)
def test_a_call_that_is_written_in_the_older_form_too_is_one(name: str) -> None:
    kind = "application/json" if name == "whole" else "text/event-stream"
    reply = read(IN_BOTH_FORMS[name], kind=kind, streams=name != "whole")
    assert calls_of(reply) == [("hours", TODAY)] and reply.complete


CUSTOM = {"name": "sql", "input": "select 1"}


@pytest.mark.parametrize(
    "body",
    [
        sse(chunk({"tool_calls": [{"index": 0, "id": "a", "custom": CUSTOM}]}), END),
        sse(
            chunk({"tool_calls": [{"index": 0, "custom": {"name": "sql", "input": "select"}}]}),
            chunk({"tool_calls": [{"index": 0, "custom": {"input": " 1"}}]}),
            END,
        ),
        json.dumps(
            {
                "choices": [
                    {
                        "message": {"tool_calls": [{"type": "custom", "custom": CUSTOM}]},
                        "finish_reason": "tool_calls",
                    }
                ]
            }
        ).encode(),
    ],
    ids=["at once", "in pieces", "whole"],
)
def test_a_call_of_a_custom_tool_has_its_text(body: bytes) -> None:
    kind = "text/event-stream" if body.startswith(b"data") else "application/json"
    reply = read(body, kind=kind, streams=body.startswith(b"data"))
    assert calls_of(reply) == [("sql", "select 1")] and reply.complete
    history = {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "custom": CUSTOM}]}]}
    (message,) = PROTOCOLS["openai_chat"].request(history, {}).messages
    assert message["tool_calls"][0]["function"] == {"name": "sql", "arguments": "select 1"}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_come_in_strange_pieces(name: str) -> None:
    chunks, expected = CALLS[name]
    reply = read(sse(*chunks, END))
    assert calls_of(reply) == expected
    assert reply.complete and reply.problem is None


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("protocol", ["anthropic_messages", "openai_responses", "ollama_chat"])
@pytest.mark.parametrize("name", CALLS)
def test_clients_of_other_apis_get_the_same_calls(name: str, protocol: str, streams: bool) -> None:
    chunks, expected = CALLS[name]
    asked = PROTOCOLS[protocol].request({**BODY, "stream": streams}, {})
    translated = translated_reply(asked, 200, "text/event-stream")
    written = translated.feed(sse(*chunks, END))
    content = written + translated.end() if streams else translated.whole()[1]
    reader = asked.reply_reader(200, {})
    reader.feed(content)
    reply = reader.finish()
    values = [(name, json.loads(arguments)) for name, arguments in calls_of(reply)]
    assert values == [(name, json.loads(arguments)) for name, arguments in expected], content
    assert reply.complete


def test_clients_of_other_apis_learn_of_arguments_that_contradict_each_other() -> None:
    asked = PROTOCOLS["anthropic_messages"].request(BODY, {})
    translated = translated_reply(asked, 200, "text/event-stream")
    pieces = [{"day": "today"}, {"day": "today", "hour": 1}]
    chunks = [call(0, "a", name="hours", arguments=piece) for piece in pieces]
    written = translated.feed(sse(*chunks, END)) + translated.end()
    assert b"contradict each other" in written and b"message_stop" not in written


def choices(value: Any, **more: Any) -> dict[str, Any]:
    return {"choices": value, **more}


WHOLE = choices([{"index": 0, "message": {"content": "Until six."}, "finish_reason": "stop"}])
PRETTY = "\n".join(f"data: {line}" for line in json.dumps(SIX[0], indent=1).splitlines()).encode()
UNDERSTOOD: dict[str, bytes] = {
    "whole JSON": json.dumps(WHOLE).encode(),
    "whole JSON on several lines": json.dumps(WHOLE, indent=1).encode(),
    "JSON lines": lines(*SIX),
    "a list of chunks": json.dumps(SIX).encode(),
    "lists in events": sse([*SIX[:2]], SIX[2]),
    "comments": b": PROCESSING\n\n: ping\n\n" + sse(*SIX),
    "a byte order mark": b"\xef\xbb\xbf" + sse(*SIX),
    "no space": sse(*SIX, before="data:"),
    "a space before the colon": sse(*SIX, before="data : "),
    "indented": sse(*SIX, before="  data: "),
    "capitals": sse(*SIX, before="Data: "),
    "the name twice": sse(*SIX, before="data: data: "),
    "single line ends": sse(*SIX, end="\n"),
    "an event of several lines": PRETTY + b"\n\n" + sse(*SIX[1:]),
    "an event of several lines, only the first with a name": (
        b"data: " + json.dumps(SIX[0], indent=1).encode() + b"\n\n" + sse(*SIX[1:])
    ),
    "its end in small letters": sse(*SIX[:2], done=False) + b"data: [done]\n\n",
    "its end in quotation marks": sse(*SIX[:2], done=False) + b'data: "[DONE]"\n\n',
    "its end without a name": sse(*SIX[:2], done=False) + b"[DONE]\n\n",
    "events that keep the connection open": sse("ping", SIX[0], "{}", "keep-alive", *SIX[1:]),
    "no choices": sse(choices([]), choices(None), *SIX, choices([])),
    "one choice in place of the list": sse(
        choices({"delta": {"content": "Until six."}, "finish_reason": "stop"})
    ),
    "no index": sse(choices([{"delta": {"content": "Until six."}}]), SIX[2]),
    "null for the index": sse(chunk({"content": "Until six."}, index=None), SIX[2]),
    "a text for the index": sse(chunk({"content": "Until six."}, "stop", index="0")),
    "parts": sse(chunk({"content": [{"type": "text", "text": "Until "}, "six."]}, "stop")),
    "a part without text": sse(chunk({"content": [{"type": "text", "text": None}]}), *SIX),
    "one part": sse(chunk({"content": {"type": "text", "text": "Until six."}}, "stop")),
    "text beside no delta": sse(choices([{"text": "Until six.", "finish_reason": "stop"}])),
    "a text that grows": sse(
        *(chunk({"content": text}) for text in ("Until", "Until s", "Until six.")), SIX[2]
    ),
    "the whole message at the end": sse(*SIX[:2], WHOLE),
    "the message beside each piece": sse(
        *(
            choices([{"delta": {"content": piece}, "message": {"content": whole}}])
            for piece, whole in (("Until ", "Until "), ("six.", "Until six."))
        ),
        SIX[2],
    ),
    "what the user said before it": sse(
        chunk({"role": "user", "content": "When?"}),
        *(chunk({"role": "assistant", **choice["choices"][0]["delta"]}) for choice in SIX[:2]),
        SIX[2],
    ),
    "an end with each piece": sse(
        chunk({"content": "Until "}, "stop"), chunk({"content": "six."}, "stop")
    ),
    "no error in each": sse(*({**event, "error": None} for event in SIX)),
    "NaN": sse(*SIX).replace(
        b'"finish_reason": "stop"', b'"logprobs": NaN, "finish_reason": "stop"'
    ),
}


@pytest.mark.parametrize("name", UNDERSTOOD)
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json", "text/plain", ""])
def test_what_is_meant_is_read(name: str, kind: str) -> None:
    for streams in (True, False):
        reply = read(UNDERSTOOD[name], kind=kind, streams=streams)
        assert (reply.text, reply.complete, reply.problem) == ("Until six.", True, None)


BROKEN: dict[str, tuple[bytes, str]] = {
    "an event that is cut": (sse(SIX[0], '{"choices":[{"ind', SIX[2]), "no JSON object"),
    "texts": (sse("Until", "six."), "no JSON object"),
    "dictionaries of Python": (sse(str(SIX[0])), "no JSON object"),
    "an error in words": (sse(SIX[0], "[ERROR] overloaded"), "no JSON object"),
    "a page": (b"<html>Bad gateway</html>", "neither events nor a JSON object"),
    "UTF-16": (sse(*SIX).decode().encode("utf-16"), "neither events nor a JSON object"),
    "only its end": (sse(), "no answer that can be read"),
    "an envelope": (sse(*({"data": event} for event in SIX)), "no answer that can be read"),
    "another API's answer": (sse({"completion": "Six."}), "no answer that can be read"),
    "indices from 1": (sse(chunk({"content": "Six."}, "stop", index=1)), "no answer has the index"),
    "results of tools": (
        sse(
            chunk({"role": "assistant", "content": "I look."}),
            chunk({"role": "tool", "content": "18:00"}),
            chunk({"role": "assistant", "content": "Six."}, "stop"),
        ),
        "messages of the role 'tool'",
    ),
    "two answers": (sse(*SIX, *SIX), "after the end of the answer"),
    "text after the end": (sse(*SIX, chunk({"content": "late"})), "after the end of the answer"),
    "calls that are none": (sse(SIX[0], END), "none can be read"),
    "a call without a name": (sse(call(0, "a", arguments="{}"), END), "has no name"),
    "arguments in a list": (
        sse(call(0, "a", name="hours", arguments="[1]"), END),
        "no JSON object",
    ),
    "a name in pieces that nobody offers": (
        sse(call(0, "a", name="look_"), call(0, "a", name="up"), END),
        "came in pieces, and none is offered",
    ),
    "a name in pieces without an id that nobody offers": (
        sse(call(0, "a", name="look_"), call(0, name="up"), call(0, arguments=TODAY), END),
        "may be pieces of one",
    ),
    "a name in pieces without an index that nobody offers": (
        sse(call(None, "a", name="look_"), call(name="up"), call(arguments=TODAY), END),
        "may be pieces of one",
    ),
    "a name in pieces beside empty arguments that nobody offers": (
        sse(call(0, "a", name="look_", arguments=""), call(0, name="up", arguments=TODAY), END),
        "may be pieces of one",
    ),
    "Latin-1": (
        sse(chunk({"content": "geöffnet"}, "stop")).replace(b"\\u00f6", b"\xf6"),
        "no UTF-8",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_understood_is_named_and_not_complete(name: str) -> None:
    body, problem = BROKEN[name]
    reply = read(body)
    assert problem in (reply.problem or ""), reply
    assert not reply.complete


ERRORS: dict[str, bytes] = {
    "an object": sse(SIX[0], {"error": {"message": "overloaded", "code": 503}}),
    "a text": sse(SIX[0], {"error": "overloaded"}),
    "an event of that name": sse(SIX[0], done=False)
    + b'event: error\ndata: {"message": "overloaded"}\n\n',
    "an event of that name with a text": sse(SIX[0], done=False)
    + b"event: error\ndata: overloaded\n\n",
    "a field of that name": sse(SIX[0], done=False) + b'error: {"message": "overloaded"}\n\n',
    "in a choice": sse(SIX[0], choices([{"delta": {}, "error": {"message": "overloaded"}}])),
    "vLLM's": sse(SIX[0], {"object": "error", "message": "overloaded", "code": 500}),
    "by its type": sse(SIX[0], {"type": "error", "message": "overloaded"}),
    "FastAPI's": sse(SIX[0], {"detail": "overloaded"}),
    "a code": sse({"code": 500, "msg": "overloaded"}),
    "whole": json.dumps({"error": {"message": "overloaded"}}).encode(),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_in_a_stream_is_the_error_of_the_call(name: str) -> None:
    reply = read(ERRORS[name])
    assert reply.error == "overloaded" and not reply.complete


@pytest.mark.parametrize("reason", ["error", "abort", "cancelled", "ERROR"])
def test_a_reason_that_says_that_it_broke_off_is_an_error(reason: str) -> None:
    reply = read(sse(SIX[0], chunk({}, reason)))
    assert reply.error is not None and reason.lower() in reply.error and not reply.complete


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["null", "stop"], "stop"),
        (["", "eos_token"], "stop"),
        (["STOP"], "stop"),
        (["MAX_TOKENS"], "length"),
        (["model_length"], "length"),
        (["SAFETY"], "content_filter"),
        (["length", "stop"], "length"),
    ],
)
def test_reasons_of_other_servers(reasons: list[str], expected: str) -> None:
    reply = read(sse(SIX[0], *(chunk({}, reason) for reason in reasons)))
    assert (reply.finish_reason, reply.complete) == (expected, True)


def test_a_reason_that_says_nothing_is_no_end() -> None:
    reply = read(sse(chunk({"content": "Until"}, "null"), done=False))
    assert (reply.error, reply.finish_reason, reply.complete) == (NO_END, None, False)


COUNTS = {"prompt_tokens": 5, "completion_tokens": 2}


@pytest.mark.parametrize(
    "events",
    [
        [*SIX, choices([], usage=COUNTS), choices([], usage=dict.fromkeys(COUNTS, 0))],
        [*SIX, choices([], usage={key: float(count) for key, count in COUNTS.items()})],
        [*SIX, choices([], usage={key: str(count) for key, count in COUNTS.items()})],
        [*SIX[:2], choices([{"delta": {}, "finish_reason": "stop", "usage": COUNTS}])],
        [*SIX[:2], {**SIX[2], "x_groq": {"usage": COUNTS}}],
    ],
    ids=["zeros at the end", "5.0", "texts", "in a choice", "Groq's"],
)
def test_counts_are_found(events: list[Any]) -> None:
    usage = read(sse(*events)).usage
    assert (usage.prompt, usage.completion) == (5, 2)


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm.", "reasoning_content": "Hm."},
        {"thinking": "Hm."},
        {"reasoning_text": "Hm."},
        {"reasoning": {"text": "Hm."}},
        {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "Hm."}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]},
    ],
    ids=lambda delta: "+".join(delta),
)
def test_thoughts_are_thoughts_under_any_name(delta: dict[str, Any]) -> None:
    reply = read(sse(chunk(delta), *SIX))
    assert (reply.reasoning, reply.text, reply.complete) == ("Hm.", "Until six.", True)


def test_a_character_whose_bytes_come_in_two_events_is_whole() -> None:
    parts = [
        b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % part
        for part in (b"ge\xc3", b"\xb6ffnet")
    ]
    reply = read(b"".join([*parts, sse(SIX[2])]))
    assert (reply.text, reply.complete) == ("geöffnet", True)


PACKED = {
    "gzip": gzip.compress(sse(*SIX)),
    "deflate": zlib.compress(sse(*SIX)),
}


@pytest.mark.parametrize("encoding", PACKED)
def test_a_packed_stream_is_read(encoding: str) -> None:
    assert read(PACKED[encoding], encoding=encoding).text == "Until six."


def test_events_that_are_packed_one_by_one_are_read() -> None:
    body = b"".join(gzip.compress(sse(event, done=False)) for event in SIX)
    assert read(body, encoding="gzip").text == "Until six."


def test_deflate_without_its_header_is_read() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    assert (
        read(packer.compress(sse(*SIX)) + packer.flush(), encoding="deflate").text == "Until six."
    )


@pytest.mark.parametrize(
    ("text", "count"), [("-" * 8, 3), ("ha", 4), ("no no no ", 3)], ids=["dashes", "laughter", "no"]
)
def test_an_answer_that_repeats_itself_stays(text: str, count: int) -> None:
    pieces = [chunk({"content": text})] * count
    assert read(sse(*pieces, SIX[2])).text == text * count


# Anthropic


def named(*events: Any, with_type: bool = True) -> bytes:
    parts = []
    for event in events:
        value = event if with_type else {key: part for key, part in event.items() if key != "type"}
        parts.append(f"event: {event['type']}\ndata: {json.dumps(value)}\n\n")
    return "".join(parts).encode()


def text_block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"text": text, **more}}


STOP = (
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
)
TOOL_STOP = ({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, STOP[1])
TEXT = {"type": "text_delta"}
MESSAGE = {
    "type": "message",
    "content": [{"type": "text", "text": "Six."}],
    "stop_reason": "end_turn",
}


@pytest.mark.parametrize(
    "body",
    [
        named(text_block("Six.", **TEXT), *STOP),
        named(text_block("Six.", **TEXT), STOP[0]),
        named(text_block("Six."), *STOP),
        named(text_block("Six.", **TEXT), *STOP, with_type=False),
        json.dumps(MESSAGE).encode(),
        sse(MESSAGE, done=False),
        json.dumps({**MESSAGE, "content": "Six."}).encode(),
    ],
    ids=[
        "as it is",
        "no stop",
        "no type of a delta",
        "types as names",
        "whole",
        "one event",
        "text",
    ],
)
def test_messages_of_anthropic(body: bytes) -> None:
    reply = read(body, "anthropic_messages")
    assert (reply.text, reply.complete, reply.problem) == ("Six.", True, None)


def use(index: int, id: str = "a", name: str = "hours", input: Any = None) -> dict[str, Any]:
    block = {"type": "tool_use", "id": id, "name": name, "input": input or {}}
    return {"type": "content_block_start", "index": index, "content_block": block}


def json_piece(index: int, text: str) -> dict[str, Any]:
    delta = {"type": "input_json_delta", "partial_json": text}
    return {"type": "content_block_delta", "index": index, "delta": delta}


@pytest.mark.parametrize(
    "events",
    [
        [use(0, input={"day": "today"}), json_piece(0, '{"day": '), json_piece(0, '"today"}')],
        [use(0), json_piece(0, '{"day"'), json_piece(0, '{"day": "to'), json_piece(0, TODAY)],
        [use(0, input={"day": "today"})],
    ],
    ids=["at the start and in pieces", "growing", "at the start"],
)
def test_calls_of_anthropic(events: list[Any]) -> None:
    reply = read(named(*events, *TOOL_STOP), "anthropic_messages")
    assert calls_of(reply) == [("hours", TODAY)] and reply.complete


@pytest.mark.parametrize("streams", [True, False])
def test_a_turn_that_the_provider_paused_is_not_complete(streams: bool) -> None:
    paused = {"stop_reason": "pause_turn"}
    body = named(text_block("I look.", **TEXT), {"type": "message_delta", "delta": paused}, STOP[1])
    kind = "text/event-stream"
    if not streams:
        kind, body = "application/json", json.dumps({**MESSAGE, **paused}).encode()
    reply = read(body, "anthropic_messages", kind, streams=streams)
    assert "paused its turn" in (reply.problem or "") and not reply.complete


def test_a_flat_error_of_anthropic() -> None:
    reply = read(named({"type": "error", "message": "overloaded"}), "anthropic_messages")
    assert reply.error == "overloaded"


# Ollama


def line(text: Any = "", done: Any = False, calls: Any = None, role: str = "assistant") -> Any:
    message = {"role": role, "content": text} | ({"tool_calls": calls} if calls else {})
    return {"message": message, "done": done} | ({"done_reason": "stop"} if done else {})


LAST = line(done=True)


@pytest.mark.parametrize(
    "body",
    [
        lines(line("Until "), line("six."), LAST),
        lines(line("Until "), line("six."), line(done="true")),
        lines(line("Until"), line("Until s"), line("Until six."), LAST),
        sse(line("Until "), line("six."), LAST, done=False),
        json.dumps([line("Until six."), LAST]).encode(),
        lines(line("Until six."), LAST).replace(b"\n", b""),
        lines(line([{"type": "text", "text": "Until six."}]), LAST),
        lines(line(None), line("Until six."), LAST),
    ],
    ids=["as it is", "true", "growing", "events", "list", "no line ends", "parts", "null"],
)
def test_lines_of_ollama(body: bytes) -> None:
    reply = read(body, "ollama_chat", "application/x-ndjson")
    assert (reply.text, reply.complete, reply.problem) == ("Until six.", True, None)


def function(arguments: Any) -> list[Any]:
    return [{"function": {"name": "hours", "arguments": arguments}}]


@pytest.mark.parametrize(
    "body",
    [
        [line(calls=function({"day": "today"})), line(done=True, calls=function({"day": "today"}))],
        [line(calls=function('{"day": ')), line(calls=function('"today"}')), LAST],
        [line(calls=function(TODAY)), LAST],
    ],
    ids=["repeated", "in pieces", "as text"],
)
def test_calls_of_ollama(body: list[Any]) -> None:
    reply = read(lines(*body), "ollama_chat", "application/x-ndjson")
    assert calls_of(reply) == [("hours", TODAY)] and reply.complete


def rolls(*ids: str | None, arguments: Any = None, **more: Any) -> list[Any]:
    """A call for each id; None is a call without one."""
    calls = []
    for id in ids:
        named = {} if id is None else {"id": id}
        calls.append({**named, "function": {"name": "roll", "arguments": arguments or {}, **more}})
    return calls


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ([line(done=True, calls=rolls(None, None))], 2),
        ([line(done=True, calls=rolls("a", "b"))], 2),
        ([line(calls=rolls(None, None)), LAST], 2),
        ([line(calls=rolls(None)), line(calls=rolls(None)), LAST], 2),
        ([line(calls=rolls("a")), line(done=True, calls=rolls("b"))], 2),
        ([line(calls=rolls(None)), line(done=True, calls=rolls(None, None))], 2),
        ([line(calls=rolls(None, None)), line(done=True, calls=rolls(None, None))], 2),
        ([line(calls=rolls("a")), line(done=True, calls=rolls("a"))], 1),
        ([line(calls=rolls("a")), line(done=True, calls=rolls(None))], 1),
    ],
    ids=[
        "whole",
        "whole with ids",
        "in one line",
        "in two lines",
        "the other in the last line",
        "one repeated, one new",
        "both repeated",
        "repeated with its id",
        "repeated without its id",
    ],
)
def test_a_call_that_ollamas_model_makes_twice(body: list[Any], count: int) -> None:
    for streams in (True, False):
        reply = read(lines(*body), "ollama_chat", "application/x-ndjson", streams=streams)
        assert calls_of(reply) == [("roll", "{}")] * count and reply.complete


@pytest.mark.parametrize("again", [{"b": 2, "a": 1}, '{"a":1,"b":2}'], ids=["order", "text"])
def test_a_call_is_repeated_in_other_words(again: Any) -> None:
    body = [
        line(calls=rolls(None, arguments={"a": 1, "b": 2})),
        line(done=True, calls=rolls(None, arguments=again)),
    ]
    reply = read(lines(*body), "ollama_chat", "application/x-ndjson")
    assert calls_of(reply) == [("roll", '{"a": 1, "b": 2}')] and reply.complete


@pytest.mark.parametrize("protocol", ["ollama_chat", "ollama_generate"])
def test_a_text_of_one_line_that_the_last_line_repeats_is_taken_once(protocol: str) -> None:
    text = "We are open until six o'clock."
    body = [line(text), line(text, done=True)]
    if protocol == "ollama_generate":
        body = [{"response": text, "done": False}, {"response": text, "done": True}]
    assert read(lines(*body), protocol, "application/x-ndjson").text == text


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (lines(line("I look."), line("18:00", role="tool"), line("Six."), LAST), "the role 'tool'"),
        (lines(line("Un")) + b'{"mess\n' + lines(line("six"), LAST), "no JSON object"),
        (lines({"response": "Six.", "done": False}, {"done": True}), "no answer that can be read"),
    ],
    ids=["results of tools", "a line that is cut", "lines of another path"],
)
def test_lines_of_ollama_that_cannot_be_understood(body: bytes, problem: str) -> None:
    reply = read(body, "ollama_chat", "application/x-ndjson")
    assert problem in (reply.problem or "") and not reply.complete


# OpenAI's responses


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


ITEM = {"type": "function_call", "call_id": "a", "name": "hours", "arguments": TODAY}
ADDED = event("output_item.added", output_index=0, item={**ITEM, "arguments": ""})
SAID = {"type": "message", "content": [{"type": "output_text", "text": "Six."}]}


def completed(*output: Any, **more: Any) -> dict[str, Any]:
    return event("completed", response={"status": "completed", "output": list(output), **more})


@pytest.mark.parametrize(
    "events",
    [
        [event("output_text.delta", delta="Six."), completed(SAID)],
        [completed(SAID)],
        [event("output_text.done", text="Six."), completed()],
        [event("output_item.done", output_index=0, item=SAID), completed()],
        [event("output_text.delta", delta="Six."), event("completed", response={})],
        [event("output_text.delta", delta="Six."), event("done", response={"status": "completed"})],
    ],
    ids=["as it is", "only the end", "only done", "only the item", "no status", "another name"],
)
def test_texts_of_responses(events: list[Any]) -> None:
    reply = read(named(*events), "openai_responses")
    assert (reply.text, reply.complete, reply.problem) == ("Six.", True, None)


@pytest.mark.parametrize(
    "events",
    [
        [ADDED, event("function_call_arguments.delta", output_index=0, delta=TODAY)],
        [ADDED, event("function_call_arguments.done", output_index=0, arguments=TODAY)],
        [ADDED, event("output_item.done", output_index=0, item=ITEM)],
        [ADDED],
        [],
        [
            event("output_item.added", item={**ITEM, "arguments": ""}),
            event("function_call_arguments.delta", delta=TODAY),
        ],
    ],
    ids=[
        "as it is",
        "arguments at once",
        "only the item",
        "only its name",
        "only the end",
        "no index",
    ],
)
def test_calls_of_responses(events: list[Any]) -> None:
    reply = read(named(*events, completed(ITEM)), "openai_responses")
    assert calls_of(reply) == [("hours", TODAY)] and reply.complete


@pytest.mark.parametrize("output", [True, False])
def test_calls_of_responses_that_only_the_ids_of_items_tell_apart(output: bool) -> None:
    items = [{**ITEM, "id": f"fc_{name}", "call_id": name, "name": name} for name in ("a", "b")]
    events = [event("output_item.added", item={**item, "arguments": ""}) for item in items]
    for part in (TODAY[:6], TODAY[6:]):
        events += [
            event("function_call_arguments.delta", item_id=item["id"], delta=part) for item in items
        ]
    reply = read(named(*events, completed(*items if output else ())), "openai_responses")
    assert calls_of(reply) == [("a", TODAY), ("b", TODAY)] and reply.complete


def test_a_call_beside_a_text_that_only_the_end_has() -> None:
    text = event("output_text.delta", delta="Six.")
    reply = read(named(text, completed(SAID, ITEM)), "openai_responses")
    assert (reply.text, calls_of(reply)) == ("Six.", [("hours", TODAY)])


def test_a_response_that_failed_without_a_status() -> None:
    failed = event("failed", response={"error": {"message": "overloaded"}})
    assert read(named(failed), "openai_responses").error == "overloaded"


# Tools that run at the provider

SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": "hours"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
SIX_BLOCK = {"type": "text", "text": "Until six."}
SEARCHED = {"type": "web_search_call", "id": "w1", "status": "completed"}
SIX_ITEM = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Until six."}],
}


def anthropic_stream(*blocks: dict[str, Any]) -> bytes:
    """Each block with its input in a delta, as Anthropic sends it."""
    events: list[Any] = [{"type": "message_start", "message": {"id": "m", "model": "m"}}]
    for index, block in enumerate(blocks):
        begun = block | {"input": {}} if "input" in block else block
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        if "input" in block:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})
    events.append({"type": "message_stop"})
    return sse(*events, done=False)


def response_stream(*items: dict[str, Any]) -> bytes:
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in enumerate(items)
    ]
    response = {"id": "r", "model": "m", "status": "completed", "output": list(items)}
    return sse(*done, {"type": "response.completed", "response": response}, done=False)


OF_PROVIDERS: dict[str, tuple[str, bytes, bytes]] = {
    "anthropic_messages": (
        "web_search",
        anthropic_stream(SEARCH, FOUND, SIX_BLOCK),
        json.dumps(
            {"type": "message", "content": [SEARCH, FOUND, SIX_BLOCK], "stop_reason": "end_turn"}
        ).encode(),
    ),
    "openai_responses": (
        "web_search_call",
        response_stream(SEARCHED, SIX_ITEM),
        json.dumps(
            {"object": "response", "status": "completed", "output": [SEARCHED, SIX_ITEM]}
        ).encode(),
    ),
}
"""Protocol -> the tool, a stream, a whole reply."""


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("protocol", OF_PROVIDERS)
def test_a_tool_that_ran_at_the_provider_is_no_call_and_its_answer_is_not_learned(
    protocol: str, streams: bool
) -> None:
    """The app makes no such call, and nobody else sees what the model read."""
    tool, stream, whole = OF_PROVIDERS[protocol]
    kind = "text/event-stream" if streams else "application/json"
    reply = read(stream if streams else whole, protocol, kind, streams=streams)
    assert (reply.text, reply.tool_calls, reply.complete) == ("Until six.", [], False)
    assert reply.problem == (
        f"it used '{tool}', which runs at the provider, and the record lacks what it returned"
    )
