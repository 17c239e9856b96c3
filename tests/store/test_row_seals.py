"""Seals of exposures and calls, in both databases: what is read back is what was sealed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from tests.worlds.experiment_world import experiment_world
from thumbwheel.db.schema import exposed_calls, exposures
from thumbwheel.experiments import controller
from thumbwheel.experiments.exposures import collect
from thumbwheel.experiments.row_seals import SealCheck, check_seals


def test_rows_read_back_as_they_were_sealed_and_an_edited_one_is_named(tmp_path: Path) -> None:
    with experiment_world(tmp_path) as world:
        experiment = world.begin()
        for number in range(6):
            world.ask(f"user-{number}", seconds=0.1 * number, fails=number == 3)
        world.drain()
        collect(world.ws, experiment, datetime.now(UTC))
        current = controller.find(world.ws, experiment.id)
        assert current.collected.calls == 6
        assert check_seals(world.ws, current) == SealCheck((), 0)

        with world.ws.db.read() as connection:
            unit = connection.execute(sa.select(exposures.c.unit).limit(1)).scalar_one()
            trace_id = connection.execute(sa.select(exposed_calls.c.trace_id).limit(1)).scalar_one()
        of_unit = exposures.update().where(exposures.c.unit == unit)
        of_call = exposed_calls.update().where(exposed_calls.c.trace_id == trace_id)
        world.ws.db.write(lambda connection: connection.execute(of_unit.values(shares={"v0": 1.0})))
        world.ws.db.write(lambda connection: connection.execute(of_call.values(cost=1.5)))
        named = (f"exposure of unit {unit}", f"call {trace_id}")
        assert check_seals(world.ws, current) == SealCheck(named, 0)
        world.ws.db.write(lambda connection: connection.execute(exposed_calls.delete()))
        assert check_seals(world.ws, current) == SealCheck(named[:1], 6)
