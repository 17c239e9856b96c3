"""Statements in somebody else's name: given, corrected and taken back by who is not them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from tests.waiting import until
from tests.worlds.forum_world import (
    AGENT,
    WORDS,
    Forum,
    forum_world,
    key_id,
    name_of,
    wait_for_key,
)
from thumbwheel.access import keys, users
from thumbwheel.capture.feedback_token import DAY, DAYS, FeedbackTokens
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.ingest import ingest
from thumbwheel.capture.traces import show_trace
from thumbwheel.core.errors import InputError
from thumbwheel.db.schema import cases, feedback, raters
from thumbwheel.erasure.erase import erase
from thumbwheel.importers.types import OWNER_MARKS
from thumbwheel.models.types import Agent
from thumbwheel.review.agreement import agreement
from thumbwheel.rewards.person_labels import person_labels


@pytest.fixture
def forum(tmp_path: Path) -> Iterator[Forum]:
    with forum_world(tmp_path) as forum:
        yield forum


def test_a_user_speaks_in_no_name_but_their_own(forum: Forum) -> None:
    reply = forum.say(forum.ann, correction="Poison.", rater="bob")
    assert reply.status_code == 422 and "ann" in reply.text
    reply = forum.say(forum.ann, thumb=True, rater={"id": "bob", "weight": 1000.0})
    assert reply.status_code == 422
    assert forum.say(forum.ann, correction="Here.").status_code == 202
    reply = forum.ann.post(WORDS, json={"target": "t1", "thumb": "up", "rater": "bob"})
    assert reply.status_code == 403
    assert forum.ann.post(WORDS, json={"target": "t1", "thumb": "up"}).status_code == 200
    ann = name_of(forum, "ann")
    assert forum.words() == [("ann", ann, "Here."), ("ann", ann, True)]


def test_nobody_takes_back_what_another_sender_said(forum: Forum) -> None:
    assert forum.say(forum.bob, correction="Bob's answer.").status_code == 202
    assert forum.say(forum.app, score=0.25, rater="carl").status_code == 202
    before = forum.words()
    bobs, carls = forum.id_of("Bob's answer."), forum.id_of(0.25)
    for statement_id, rater in ((bobs, "bob"), (carls, "carl")):
        for verb in ("retracts", "supersedes"):
            forum.say(forum.ann, thumb=False, **{verb: statement_id})
            forum.say(forum.other_app, thumb=False, rater=rater, **{verb: statement_id})
            body = {"target": "t1", "thumb": "down", verb: statement_id}
            assert forum.ann.post(WORDS, json=body).status_code in (400, 422)
            body["rater"] = rater
            assert forum.other_app.post(WORDS, json=body).status_code in (400, 422)
    assert [word for word in forum.words() if word in before] == before
    # their own words they may take back, by whatever road these came
    assert forum.bob.post(WORDS, json={"target": "t1", "retracts": bobs}).status_code == 200
    forum.say(forum.app, retracts=carls, rater="carl")
    assert not [word for word in forum.words() if word in before]


def test_a_newer_word_of_another_sender_replaces_none(forum: Forum) -> None:
    forum.say(forum.ann, thumb=True)
    forum.say(forum.app, thumb=False, rater="ann")
    assert [word[2] for word in forum.words()] == [True, False]


def test_a_file_takes_nothing_back_that_came_to_the_server(forum: Forum, tmp_path: Path) -> None:
    forum.say(forum.ann, thumb=True)
    path = tmp_path / "lines.jsonl"
    line = {
        "type": "feedback",
        "source": "sdk",
        "target": {"trace": "t1"},
        "kind": "thumb",
        "value": False,
        "rater": "ann",
        "sender": name_of(forum, "ann"),
        "retracts": forum.id_of(True),
    }
    path.write_text(json.dumps(line) + "\n")
    report_or_refusal(forum, path)
    assert [word[2] for word in forum.words()] == [True]


def test_a_model_is_no_person_whoever_sends_its_words(forum: Forum) -> None:
    for app in (forum.app, forum.other_app):
        assert forum.say(app, thumb=True, rater={"id": "gpt", "kind": "model"}).status_code == 202
    assert forum.say(forum.ann, thumb=False).status_code == 202
    assert forum.say(forum.bob, thumb=False).status_code == 202
    (panel,) = agreement(forum.ws, AGENT)
    assert len(panel.judges) == 2 and len(panel.raters) == 2
    assert {judge.agreement.share for judge in panel.judges} == {0}
    with forum.ws.db.read() as connection:
        assert list(person_labels(connection, Agent.named(AGENT)).values()) == [False]


def report_or_refusal(forum: Forum, path: Path) -> None:
    try:
        ingest(forum.ws, AGENT, "jsonl", path)
    except InputError as error:
        assert "another rater, sender or source" in str(error)


def test_a_token_is_one_rater_whatever_it_calls_itself(forum: Forum) -> None:
    reply = forum.app.post(f"/a/{AGENT}/api/feedback-tokens", json={"trace": "t1"})
    forum.stranger.headers["authorization"] = f"Bearer {reply.json()['token']}"
    for number, rater in enumerate(("ann", "bob", "x", "y")):
        assert forum.say(forum.stranger, score=number / 10, rater=rater).status_code == 202
    ((speaker, sender, value),) = forum.words()
    assert speaker is not None and speaker.startswith("token:")
    assert (sender, value) == (key_id(forum, "app"), 0.3)
    assert forum.say(forum.stranger, retracts=forum.id_of(0.3)).status_code in (403, 422)


def test_a_sender_that_a_client_claims_is_no_sender(forum: Forum) -> None:
    forum.say(forum.app, thumb=True, rater="carl", sender="local")
    assert forum.words() == [("carl", key_id(forum, "app"), True)]


def test_it_is_shown_who_said_it_for_whom(forum: Forum) -> None:
    forum.say(forum.app, thumb=True, rater="carl")
    forum.say(forum.ann, thumb=True)
    sentences = [word.get("said") for word in show_trace(forum.ws, AGENT, "t1")["feedback"]]
    assert sentences == ["said by app for carl", None]


def test_an_erasure_takes_what_a_user_sent_for_others(forum: Forum) -> None:
    forum.say(forum.ann, correction="Written by ann.")
    forum.say(forum.app, thumb=True, rater="carl")
    erase(forum.ws, Agent.named(AGENT), "ann")
    assert [word[0] for word in forum.words()] == ["carl"]


def test_no_app_says_what_kind_of_rater_a_user_is(forum: Forum) -> None:
    """A row of the rater that an app sends first had the user's name, kind and weight."""
    for rater in ({"id": "ann", "kind": "model", "weight": 0.0}, {"id": "bob", "weight": 0.1}):
        assert forum.say(forum.app, score=0.5, rater=rater).status_code == 202
    assert forum.say(forum.ann, thumb=False).status_code == 202
    assert forum.say(forum.bob, thumb=False).status_code == 202
    with forum.ws.db.read() as connection:
        assert list(person_labels(connection, Agent.named(AGENT)).values()) == [False]
        judgements = {row.value: row for row in rated(connection)}
    assert judgements[False].kind == "person" and judgements[False].weight == 1.0


def rated(connection: sa.Connection) -> Sequence[Any]:
    """Value, kind and weight of the rater of every thumb."""
    columns = feedback.c.value, raters.c.kind, raters.c.weight
    joined = feedback.join(raters, raters.c.id == feedback.c.rater_id)
    return connection.execute(
        sa.select(*columns).select_from(joined).where(feedback.c.kind == "thumb")
    ).all()


def test_a_user_is_no_rater_more_with_feedback_tokens(forum: Forum) -> None:
    """Each token is a rater: with a hundred of them a user had a hundred votes."""
    reply = forum.ann.post(f"/a/{AGENT}/api/feedback-tokens", json={"trace": "t1"})
    assert reply.status_code == 403


def test_a_page_that_is_opened_again_is_no_other_rater(forum: Forum) -> None:
    tokens = FeedbackTokens.with_key(forum.ws.home.feedback_key)
    morning = 1_788_600_000 // DAY * DAY
    per_day = {tokens.make(AGENT, "t1", "key_1", morning + 3600 * hour) for hour in range(24)}
    assert len(per_day) == 1
    (token,) = per_day
    assert tokens.objection(token, AGENT, "t1", morning + (DAYS + 1) * DAY) is None
    assert tokens.objection(token, AGENT, "t1", morning + (DAYS + 1) * DAY + 1) is not None


def test_no_app_gives_a_rater_more_weight_than_others(forum: Forum) -> None:
    """Votes are counted by weight, and two of 1e308 make a sum that is no number."""

    def weigh(name: str, weight: float) -> int:
        rater = {"id": name, "weight": weight}
        return int(forum.say(forum.app, thumb=True, rater=rater).status_code)

    assert weigh("a", 1e308) == 422
    assert weigh("b", 1.5) == 403
    assert weigh("c", 0.5) == 202
    secret = keys.add(forum.ws, "editor", agents=[AGENT], verbs=["rate", "edit"]).secret
    forum.app.headers["authorization"] = f"Bearer {secret}"
    until(lambda: weigh("d", 2.0) == 202)
    assert {word[0] for word in forum.words()} == {"c", "d"}


def test_a_user_is_one_person_on_every_road(forum: Forum) -> None:
    forum.say(forum.ann, thumb=True)
    assert forum.ann.post(WORDS, json={"target": "t1", "thumb": "down"}).status_code == 200
    assert [word[2] for word in forum.words()] == [False]


def test_an_idempotency_key_is_of_its_sender(forum: Forum) -> None:
    rows = {"input": "Mine?", "output": "Yes."}, {"input": "Its?", "output": "No."}
    headers = {"idempotency-key": "order-1"}
    path = f"/a/{AGENT}/api/traces"
    names = []
    for app, row in zip((forum.other_app, forum.app), rows, strict=True):
        replies = [app.post(path, json=row, headers=headers) for _ in range(2)]
        assert replies[0].json() == replies[1].json()
        names += replies[0].json()["ids"]
    drain_inbox(forum.ws)
    outputs = [show_trace(forum.ws, AGENT, name)["output"] for name in names]
    assert outputs == ["Yes.", "No."]
    assert not (forum.ws.home.inbox / "rejected.jsonl").exists()


@pytest.mark.parametrize("mark", OWNER_MARKS)
def test_no_app_says_what_stands_in_the_gate(forum: Forum, mark: str) -> None:
    """A question of which one trace is held out stands in dev or gate with all its answers."""
    row = {"input": "Where is it?", "output": "Here.", "metadata": {mark: True}}
    path = f"/a/{AGENT}/api/traces"
    assert forum.app.post(path, json=row).status_code == 403
    assert forum.app.post(path, json=[{"input": "a", "output": "b"}, row]).status_code == 403
    secret = keys.add(forum.ws, "editor", agents=[AGENT], verbs=["call", "edit"]).secret
    forum.app.headers["authorization"] = f"Bearer {secret}"
    wait_for_key(forum.app, {**row, "id": "held-out"})
    drain_inbox(forum.ws)
    assert show_trace(forum.ws, AGENT, "held-out")["metadata"] == {mark: True}


def test_no_app_answers_in_a_trace_that_others_judged(forum: Forum) -> None:
    """Late spans of a run whose answer is a call complete it; the thumb was for no text."""
    name = "ab" * 16
    start = 1_788_600_000 * 10**9
    asked = [{"role": "user", "content": "Where is it?"}]
    first = span(name, "01" * 8, start, {"gen_ai.input.messages": json.dumps(asked)})
    assert send_spans(forum, forum.app, first) == 200
    drain_inbox(forum.ws, everything=True)
    assert forum.ann.post(WORDS, json={"target": name, "thumb": "up"}).status_code == 200
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "Poison."}]}]
    messages = {"gen_ai.input.messages": json.dumps(asked)}
    messages["gen_ai.output.messages"] = json.dumps(answer)
    assert send_spans(forum, forum.other_app, span(name, "02" * 8, start + 10**9, messages)) == 200
    drain_inbox(forum.ws, everything=True)
    trace = show_trace(forum.ws, AGENT, name)
    assert trace["output"] is None
    assert len(trace["steps"]) == 2  # what its app sends late is a step all the same


def span(trace_id: str, span_id: str, start: int, attributes: dict[str, str]) -> dict[str, Any]:
    """A call of a model in OTLP's JSON."""
    named = {"gen_ai.operation.name": "chat", **attributes}
    return {
        "traceId": trace_id,
        "spanId": span_id,
        "name": "chat",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 10**8),
        "attributes": [
            {"key": key, "value": {"stringValue": value}} for key, value in named.items()
        ],
    }


def send_spans(forum: Forum, app: TestClient, *spans: dict[str, Any]) -> int:
    """The status of the answer."""
    body = {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}
    return app.post(f"/a/{AGENT}/v1/traces", json=body).status_code


def test_an_app_makes_nothing_gold_in_the_name_of_an_editor(forum: Forum) -> None:
    users.set_role(forum.ws, "ann", "editor", agent=AGENT)
    queues = f"/api/agents/{AGENT}/queues"
    until(lambda: forum.ann.post(queues, json={"name": "review"}).status_code == 200)
    queue, in_name_of_ann = f"{queues}/review", {"rater": "ann"}
    (item,) = forum.app.post(f"{queue}/next", json=in_name_of_ann).json()["items"]
    rating = f"{queue}/items/{item['id']}/rating"
    forged = {**in_name_of_ann, "key": "forged", "thumb": "up"}
    assert forum.app.post(rating, json=forged).status_code == 200

    def make_gold() -> Any:
        return forum.ann.post(f"{queue}/gold", json={**in_name_of_ann, "checker": "exact_answer"})

    refusal = make_gold()
    assert refusal.status_code == 422 and "an app says" in refusal.text
    # what the app said does not keep her from rating the item herself, or from disliking it
    for key, thumb in (("first", "down"), ("second", "up")):
        rating_of_ann = {**in_name_of_ann, "key": key, "thumb": thumb}
        assert forum.ann.post(rating, json=rating_of_ann).status_code == 200
        assert forum.app.post(rating, json={**forged, "key": f"after {key}"}).status_code == 422
        assert make_gold().status_code == (200 if thumb == "up" else 422)
    with forum.ws.db.read() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(cases)) == 1
