"""A real MLflow: traces and feedback that its own client logged are imported, page by page, and a
later import reads what is new."""

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
from thumbwheel.core.errors import InputError
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.importers.location import path_or_address
from thumbwheel.importers.sources import mlflow
from thumbwheel.llm.port import free_port

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.sqlite]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(peer_environment("mlflow") / "mlflow"),
        *("server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        *("--default-artifact-root", str(folder / "artifacts")),
    ]
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "PYTHONPATH": ""}
    with running(command, f"{url}/health", folder, environment):
        yield url


def log(folder: Path, url: str, *arguments: str) -> list[dict[str, Any]]:
    python = peer_environment("mlflow") / "python"
    return output_of(python, "mlflow_app.py", url, *arguments, folder=folder)


def test_what_its_client_logged_is_imported_and_then_only_what_is_new(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "PAGE", 2)
    logged = log(tmp_path, url, "support", "run", "0", "5")
    with Workspace.open(Home.at(tmp_path / "home"), Sources({}, "none", {})) as ws:

        def bring(address: str = url) -> ImportReport:
            return ingest(ws, "desk", "mlflow", path_or_address(address))

        # everything, by its contents
        report = bring()
        assert (report.read, report.stored, report.refused) == (6, 5, 0)
        assert report.records == Counter(
            {"trace": 5, "feedback": 12, "thumb": 5, "label": 5, "correction": 2}
        )
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
            steps = connection.execute(
                sa.select(schema.steps)
                .where(schema.steps.c.trace_id == trace.id)
                .order_by(schema.steps.c.position)
            ).all()
        assert (trace.output, trace.subject) == ("Nine to five.", "user-3")
        assert trace.content == {"content": "Hours of shop 3?"}
        assert [step.kind for step in steps] == ["tool", "llm"]
        assert (steps[1].requested_model, steps[1].prompt_tokens) == ("tiny", 11)
        assert steps[1].sampling == {"temperature": 0.2}

        # nothing new, then a feedback about an old trace, then a trace
        assert (bring().stored, bring().records) == (0, Counter())
        log(tmp_path, url, "support", "rate", logged[0]["trace"])
        assert bring().records == Counter({"feedback": 1, "rating": 1})
        log(tmp_path, url, "support", "run", "5", "6")
        assert bring().records["trace"] == 1

        # a second experiment: the address says which
        log(tmp_path, url, "billing", "run", "0", "1")
        with pytest.raises(InputError, match=r"several with traces.*billing, support"):
            bring()
        assert bring(f"{url}/?experiment=support").records == Counter()
        assert bring(f"{url}/?experiment=billing").records["trace"] == 1
        with pytest.raises(InputError, match=r"no experiment 'sales'.*support"):
            bring(f"{url}/?experiment=sales")


def test_a_server_of_something_else_is_named(url: str, tmp_path: Path) -> None:
    with (
        Workspace.open(Home.at(tmp_path / "home"), Sources({}, "none", {})) as ws,
        pytest.raises(InputError, match=r"Phoenix at http.*address of Phoenix"),
    ):
        ingest(ws, "desk", "phoenix", path_or_address(url))
