"""A job of this process, and a worker of another host of the home, which helps with its parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime

from thumbwheel.db.hosts import folder_id
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import JOBS
from thumbwheel.jobs import claims, current, part_store, parts, queue, store
from thumbwheel.jobs.host import Host
from thumbwheel.jobs.part_types import JobPart, PartHandler
from thumbwheel.jobs.types import JobsConfig, WorkerRow

KIND = "code"
"""Of the job; parts may be of any."""


@contextmanager
def doing(ws: Workspace) -> Iterator[None]:
    """Have a job, as worker wrk_a of the first host."""
    now = datetime.now(UTC)
    ws.db.write(lambda connection: store.add_worker(connection, worker(ws, "wrk_a")))
    queue.enqueue(ws, KIND, {"code": ""})
    job = ws.db.write(
        lambda connection: claims.claim(connection, "wrk_a", {KIND: ()}, JobsConfig(), now), JOBS
    )
    assert job is not None
    with current.doing(job):
        yield


def worker(ws: Workspace, worker_id: str) -> WorkerRow:
    now = datetime.now(UTC)
    return WorkerRow(worker_id, Host.of(ws.home).id, 1, 1, "", 0, now, now)


def take_over(ws: Workspace, row: WorkerRow) -> None:
    """Take a worker for dead, as a worker does that misses its signs of life."""
    now = datetime.now(UTC)
    ws.db.write(lambda connection: claims.take_over(connection, row, JobsConfig(), now), JOBS)


class Helper(threading.Thread):
    """A worker of another host, in a thread of this process."""

    def __init__(
        self,
        ws: Workspace,
        part_kind: str,
        opened: Callable[[Workspace], AbstractContextManager[PartHandler]],
    ) -> None:
        super().__init__(daemon=True)
        self.ws, self.worker_id = ws, "wrk_b"
        self.part_kind, self.opened = part_kind, opened
        self.n_done = 0
        self.error: BaseException | None = None
        self.ended = threading.Event()
        ws.db.write(lambda connection: store.add_worker(connection, worker(ws, self.worker_id)))

    def claim(self) -> JobPart | None:
        return self.ws.db.write(
            lambda connection: part_store.claim_of_others(
                connection, self.worker_id, folder_id(self.ws.home), [self.part_kind], [KIND]
            ),
            JOBS,
        )

    def row(self) -> WorkerRow:
        """Its row, as it is stored."""
        with self.ws.db.read() as connection:
            rows = store.all_workers(connection)
        (row,) = [row for row in rows if row.id == self.worker_id]
        return row

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                part = self.claim()
                if part is not None:
                    self.do(part)
                self.ended.wait(0.01)
        except BaseException as error:
            self.error = error

    def do(self, part: JobPart) -> None:
        self.ws.db.guard = parts.guard(lambda: part)
        try:
            with self.opened(self.ws) as handler:
                parts.finish(self.ws, part, handler(part.spec))
        finally:
            self.ws.db.guard = None
        self.n_done += 1
