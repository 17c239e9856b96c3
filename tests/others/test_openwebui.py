"""A real Open WebUI whose model is our gateway: people chat and rate, the ratings are imported, and
the page about it turns them into a model that answers in the same chat."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.doc_pages import ROOT, Block, blocks
from tests.others.environments import peer_environment
from tests.others.openwebui_client import OpenWebUiClient
from tests.others.peer_server import running
from tests.worlds.animals_world import LEARNS, PLACES, write_world
from thumbwheel.llm.fake import FakeServer, Reply, Request
from thumbwheel.llm.port import free_port

pytestmark = [
    pytest.mark.openwebui,
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.sqlite,
]

NEEDS = "openwebui"
BLOCKS = [block for block in blocks(ROOT / "docs" / "17-openwebui.md") if block.needs == NEEDS]
EMAIL, PASSWORD = "ann@example.org", "sesame-99"
QUESTIONS = [f"{animal} {number}" for number in range(60) for animal in PLACES]
LONGEST = 900
"""Seconds of a block of the page."""


def block_with(words: str) -> Block:
    (block,) = [block for block in BLOCKS if words in block.text]
    return block


@dataclass(frozen=True)
class Shell:
    """Somebody's terminal: a folder, a home, and the variables that the page names."""

    folder: Path
    variables: Mapping[str, str]

    def run(self, script: str) -> str:
        """What the commands print; every one of them has to succeed."""
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def json(self, command: str) -> Any:
        """What `thumbwheel COMMAND --json` prints."""
        return json.loads(self.run(f"thumbwheel {command} --json"))


@pytest.fixture(scope="module")
def ollama() -> Iterator[str]:
    """The model of today: every third answer about an animal is right."""

    def answer(request: Request) -> Reply:
        animal, *_, number = str(request.body["messages"][-1]["content"]).split()
        text = "I do not know."
        if animal in PLACES:
            text = PLACES[animal] if int(number) % 3 == 0 else '{"at":"roof"}'
        head = {"id": "c1", "created": 1, "model": request.body["model"]}
        if request.body.get("stream"):
            choice = {"index": 0, "delta": {"role": "assistant", "content": text}}
            ended = {"index": 0, "delta": {}, "finish_reason": "stop"}
            events = [
                {**head, "object": "chat.completion.chunk", "choices": [part]}
                for part in (choice, ended)
            ]
            stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            return Reply(stream + "data: [DONE]\n\n", headers={"content-type": "text/event-stream"})
        message = {"role": "assistant", "content": text}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}
        return Reply({**head, "object": "chat.completion", "choices": choices, "usage": usage})

    with FakeServer(answer) as server:
        server.pages["/v1/models"] = {"data": [{"id": "llama3.2"}]}
        yield server.url.removesuffix("/v1")


@pytest.fixture(scope="module")
def openwebui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With the settings of the page."""
    folder = tmp_path_factory.mktemp("openwebui")
    environment = {
        "DATA_DIR": str(folder),
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "ENABLE_OLLAMA_API": "false",
        "WEBUI_SECRET_KEY": "for-tests",
        "WEBUI_ADMIN_EMAIL": EMAIL,
        "WEBUI_ADMIN_PASSWORD": PASSWORD,
        "PYTHONPATH": "",
    }
    for line in block_with("OPENAI_API_CONFIGS").text.splitlines():
        name, _, value = line.partition("=")
        environment[name] = value
    port = free_port()
    program = str(peer_environment("openwebui") / "open-webui")
    command = [program, "serve", "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/health", folder, environment):
        yield url


@pytest.fixture(scope="module")
def person(openwebui: str) -> OpenWebUiClient:
    return OpenWebUiClient(openwebui, EMAIL, PASSWORD)


@pytest.fixture
def shell(tmp_path: Path, ollama: str, openwebui: str, person: OpenWebUiClient) -> Iterator[Shell]:
    """With the gateway of the page, which ends with the test."""
    variables = {
        "OLLAMA": ollama,
        "MODEL": "llama3.2",
        "OPENWEBUI": openwebui,
        "OPENWEBUI_KEY": person.key,
        "BASE": str(tmp_path / "base"),
        "THUMBWHEEL_HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    for name, value in LEARNS.items():
        variables[f"THUMBWHEEL_TRAIN__SFT__{name.upper()}"] = str(value)
    shell = Shell(tmp_path, variables)
    shell.run(block_with("thumbwheel serve").text)
    assert "desk" in person.models()
    yield shell
    with suppress(ProcessLookupError):
        os.kill(int((tmp_path / "serve.pid").read_text()), signal.SIGTERM)


def test_a_rating_is_about_the_recorded_call_and_comes_once(
    shell: Shell, person: OpenWebUiClient
) -> None:
    (import_command,) = [
        line
        for line in block_with("secrets set").text.splitlines()
        if line.startswith("thumbwheel import")
    ]

    def bring(query: str = "") -> dict[str, Any]:
        command = import_command.replace('"$OPENWEBUI"', f'"$OPENWEBUI/{query}"')
        return dict(json.loads(shell.run(f"{command} --json")))

    answer = person.ask("fox 3", "desk", system="Name the place.")
    assert answer.text == PLACES["fox"]
    rating_id = person.rate(answer, 1)

    # the answer, its title, and the rating
    report = bring()
    assert (report["read"], report["stored"], report["refused"]) == (1, 1, 0), report
    assert report["records"] == {"feedback": 1, "thumb": 1}
    answers = recorded_answers(shell)
    ((trace_id, trace),) = answers.items()
    assert (trace["session"], trace["subject"]) == (answer.chat, person.user)
    assert [message["role"] for message in trace["input"]] == ["system", "user"]
    assert trace["metadata"]["openwebui_message_id"] == answer.message
    assert judged(shell) == [(True, trace_id)]

    # nothing new, then another thumb
    report = bring()
    assert (report["read"], report["records"]) == (0, {})
    person.rate(answer, -1, rating_id)
    assert bring()["records"] == {"feedback": 1, "thumb": 1}
    assert judged(shell) == [(True, trace_id), (False, trace_id)]
    assert recorded_answers(shell).keys() == answers.keys()

    # everybody's chats: the answer is recorded already
    report = bring("?chats=all&model=desk")
    assert (report["records"], report["refused"]) == ({}, 0)
    assert report["left_out"] == {"its call is recorded": 1}


def test_the_page_leads_to_a_model_of_ones_own(shell: Shell, person: OpenWebUiClient) -> None:
    write_world(shell.folder)  # the cases that were reviewed, and a base that knows nothing
    shell.run("thumbwheel gate declare --agent desk --margin-anchors 9 --max-growth 99")

    # people ask and rate; what is wrong they edit
    chats = set()
    for question in QUESTIONS:
        answer = person.ask(question, "desk")
        chats.add(answer.chat)
        right = PLACES[question.split()[0]]
        if answer.text != right:
            person.edit(answer, right)
        person.rate(answer, 1 if answer.text == right else -1)

    # what the page says: the rated answers are the recorded ones
    gateway, ratings, turn, back = [block for block in BLOCKS if block.kind == "sh"]
    assert gateway == block_with("thumbwheel serve")
    shell.run(ratings.text)
    stored = shell.json("feedback stats --agent desk")
    rated = shell.json(f"{TRACES} --rated")["traces"]
    of_chats = [trace["source"] for trace in rated if trace["session"] in chats]
    assert of_chats == ["sdk"] * len(QUESTIONS)
    shell.run(turn.text)

    # the gate approved, and the same chat is answered by the new version
    live = live_version(shell)
    assert live != "v0", stored
    answer = person.ask("dog 301", "desk")
    assert answer.text == PLACES["dog"]
    recorded = shell.json(f"{TRACES} --version {live} --session {answer.chat}")["traces"]
    assert PLACES["dog"] in [trace["output"] for trace in recorded]  # beside the title
    shell.run(back.text)
    assert live_version(shell) == "v0"


TRACES = "traces list --agent desk --limit 1000"


def live_version(shell: Shell) -> str:
    rows = shell.json("deployments --agent desk")
    (row,) = [row for row in rows if "live" in row["aliases"]]
    return str(row["version"])


def recorded_answers(shell: Shell) -> dict[str, dict[str, Any]]:
    """Id -> trace, without the calls that answer nobody."""
    answers = {}
    for row in shell.json(TRACES)["traces"]:
        trace = shell.json(f"traces show {row['id']} --agent desk")
        if "openwebui_task" not in trace["metadata"]:
            answers[row["id"]] = trace
    return answers


def judged(shell: Shell) -> list[tuple[Any, str]]:
    """(value, id of the trace) of all feedback, the oldest first."""
    rows = shell.json("feedback list --agent desk --limit 1000")
    rows.sort(key=lambda row: row["occurred_at"])
    return [(row["value"], row["targets"][0]["target_id"]) for row in rows]
