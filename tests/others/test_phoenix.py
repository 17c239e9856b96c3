"""A real Phoenix: traces and annotations that its own client logged are imported, page by page, and
a later import reads what is new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.others.environments import peer_environment
from tests.others.peer_server import output_of, running
from thumbwheel.capture.feedback import list_feedback
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.importers.location import path_or_address
from thumbwheel.importers.sources import phoenix
from thumbwheel.llm.port import free_port

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.sqlite]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("phoenix")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PYTHONPATH": "",
    }
    command = [str(peer_environment("phoenix") / "phoenix"), "serve"]
    with running(command, f"{url}/v1/projects", folder, environment):
        yield url


def log(folder: Path, url: str, *arguments: str) -> list[dict[str, Any]]:
    python = peer_environment("phoenix") / "python"
    return output_of(python, "phoenix_app.py", url, "support", *arguments, folder=folder)


def test_what_its_client_logged_is_imported_and_then_only_what_is_new(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phoenix, "PAGE", 2)
    monkeypatch.setattr(phoenix, "MANY", 4)
    monkeypatch.setattr(phoenix, "IN_ADDRESS", 3)
    logged = log(tmp_path, url, "run", "0", "5")
    with Workspace.open(Home.at(tmp_path / "home"), Sources({}, "none", {})) as ws:

        def bring() -> ImportReport:
            return ingest(ws, "desk", "phoenix", path_or_address(url))

        # everything, by its contents
        report = bring()
        assert (report.read, report.stored, report.refused) == (6, 5, 0)
        assert report.records == Counter({"trace": 5, "feedback": 10, "thumb": 5, "label": 5})
        assert report.left_out == {"none of its spans says what a model was asked": 1}
        thumbs = {
            row["targets"][0]["external_id"]: row["value"]
            for row in list_feedback(ws, "desk", kind="thumb")
        }
        assert thumbs == {entry["trace"]: entry["thumb"] for entry in logged}
        with ws.db.read() as connection:
            (trace,) = connection.execute(
                sa.select(
                    schema.traces.c.id,
                    schema.traces.c.output,
                    schema.messages.c.content,
                    schema.subjects.c.external_id.label("subject"),
                )
                .join(schema.messages, schema.messages.c.id == schema.traces.c.input_id)
                .join(schema.subjects, schema.subjects.c.id == schema.traces.c.subject_id)
                .where(schema.traces.c.external_id == logged[3]["trace"])
            )
            labels = connection.execute(
                sa.select(
                    schema.feedback_targets.c.kind,
                    schema.feedback_targets.c.step,
                    schema.steps.c.name,
                )
                .join(
                    schema.feedback, schema.feedback.c.id == schema.feedback_targets.c.feedback_id
                )
                .join(
                    schema.steps,
                    sa.and_(
                        schema.steps.c.trace_id == schema.feedback_targets.c.target_id,
                        schema.steps.c.position == schema.feedback_targets.c.step,
                    ),
                )
                .where(schema.feedback.c.kind == "label")
            ).all()
        assert (trace.output, trace.subject) == ("Nine to five.", "user-3")
        assert trace.content == {"content": "Hours of shop 3?"}
        assert set(labels) == {("step", 0, "look_up")}
        assert len(labels) == 5

        # nothing new, then annotations of an old trace and of a span in it, then a trace
        assert (bring().stored, bring().records) == (0, Counter())
        log(tmp_path, url, "rate", logged[0]["trace"], logged[0]["call"])
        assert bring().records == Counter({"feedback": 2, "rating": 1, "score": 1})
        (rating,) = list_feedback(ws, "desk", kind="rating")
        (target,) = rating["targets"]
        assert target["external_id"] == logged[0]["trace"]  # the call gave the answer of the trace
        log(tmp_path, url, "run", "5", "6")
        assert bring().records["trace"] == 1
