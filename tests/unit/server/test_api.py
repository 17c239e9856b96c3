"""The rest of the server beside the gateway: the API of the stages, on the same port."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.worlds.gateway_world import opened_home, running, serve_remote
from thumbwheel.db.schema import feedback_targets, traces
from thumbwheel.models.types import EndpointAddress


def test_feedback_about_a_recorded_call_meets_it(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    with opened_home(tmp_path / "home") as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        with running(ws) as gateway:
            trace = gateway.ask().headers["x-thumbwheel-trace"]
            row = {"agent": "support", "target": {"trace": trace}, "kind": "thumb", "value": True}
            assert gateway.client.post("/api/feedback", json=row).status_code == 202
            below = gateway.client.post("/a/support/api/traces", json={"input": "a", "output": "b"})
            assert below.status_code == 202
            assert gateway.client.post("/v1/traces", content=b"").status_code < 500
            assert gateway.client.get("/api/nothing").status_code == 404
        with ws.db.read() as connection:
            (target_id,) = connection.execute(sa.select(feedback_targets.c.target_id)).scalars()
            query = sa.select(traces.c.external_id).where(traces.c.id == target_id)
            assert connection.execute(query).scalar_one() == trace
            count = connection.execute(sa.select(sa.func.count()).select_from(traces))
            assert count.scalar_one() == 2
