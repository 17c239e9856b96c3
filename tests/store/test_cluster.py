"""One home on many hosts: its keys in PostgreSQL, sealed; who may join; and the way back."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.models.tiny_models import record
from tests.servers.postgres_server import Databases
from tests.waiting import until
from tests.worlds.erasure_world import AGENT, lines_of, write
from thumbwheel.access import audit, keys
from thumbwheel.access.types import LOCAL_TOKEN
from thumbwheel.access.web_tokens import WebTokens
from thumbwheel.app.routing_table import upstream_of
from thumbwheel.capture.feedback_token import FeedbackTokens
from thumbwheel.capture.ingest import ingest
from thumbwheel.core import key_files
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError, Conflict, StorageError
from thumbwheel.core.seal import make_seal, read_seal
from thumbwheel.core.secret_store import SecretStore, stored_secrets
from thumbwheel.datasets.build import build, by_id, load_rows
from thumbwheel.db import cluster, host_software
from thumbwheel.db.dialects import SQLITE, backend_at
from thumbwheel.db.host_software import (
    as_row,
    clock_difference,
    require_same_clock,
    software_of_host,
)
from thumbwheel.db.hosts import folder_id, set_software
from thumbwheel.db.ownership import noted_ownership
from thumbwheel.db.schema import cluster_keys, datasets, runs
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import routing
from thumbwheel.deploy import store as deployment_store
from thumbwheel.deploy.types import DeploymentState, Endpoint
from thumbwheel.deploy.watch import DeploymentWatch
from thumbwheel.erasure.pending_erasures import cluster_hosts
from thumbwheel.homes.backup import back_up, restore
from thumbwheel.homes.move import move
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent, ensure_base
from thumbwheel.training import train
from thumbwheel.training.killed_runs import settle_killed
from thumbwheel.training.types import RunState

pytestmark = pytest.mark.postgresql
SECRET = "sk-of-the-upstream"


def new_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


KEY = new_key()


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    address = databases.migrated()
    yield address
    databases.drop(address)


def variables(url: str, key: str | None = KEY) -> dict[str, str]:
    of_database = {} if url == SQLITE else {"THUMBWHEEL_DATABASE": url}
    return of_database | ({} if key is None else {"THUMBWHEEL_CLUSTER_KEY": key})


def opened(folder: Path, url: str, key: str | None = KEY) -> Workspace:
    return Workspace.open(Home.at(folder), Sources({}, "none", variables(url, key)))


@pytest.fixture
def hosts(tmp_path: Path, url: str) -> Iterator[tuple[Workspace, Workspace]]:
    """Two folders of one home that had keys, a secret and an audit log before."""
    first, second = tmp_path / "first", tmp_path / "second"
    with opened(first, url, None) as ws:
        SecretStore(ws.home.secrets).set("UPSTREAM", SECRET)
        keys.add(ws, "before")
    cluster.initialise(Home.at(first), variables(url))
    cluster.join(Home.at(second), variables(url))
    with opened(first, url) as ws_here, opened(second, url) as ws_there:
        yield ws_here, ws_there


def keys_in(home: Home) -> set[str]:
    """The files of the folder that hold a key or a secret."""
    return {path.name for path in (*home.keys, *home.secrets.glob("*")) if path.exists()}


def test_a_joined_folder_holds_no_key_and_the_database_none_in_plain_text(
    hosts: tuple[Workspace, Workspace],
) -> None:
    for ws in hosts:
        assert ws.is_shared
        assert keys_in(ws.home) == set()
    with hosts[0].db.read() as connection:
        rows = connection.execute(sa.select(cluster_keys)).all()
    assert {row.name for row in rows} == {
        *("cluster", "access.key", "signing.key", "feedback.key", "audit.head"),
        "secrets/UPSTREAM",
    }
    assert not any(SECRET in base64.b64decode(row.sealed).decode("latin-1") for row in rows)


def test_keys_secrets_and_tokens_of_one_host_are_those_of_the_other(
    hosts: tuple[Workspace, Workspace],
) -> None:
    first, second = hosts
    for name in ("access_key", "signing", "feedback_key", "secret"):
        path_here, path_there = getattr(first.home, name), getattr(second.home, name)
        assert make_seal(path_here) == read_seal(path_there)
    assert SecretStore(second.home.secrets).require("UPSTREAM") == SECRET
    SecretStore(second.home.secrets, "support").set("UPSTREAM", "sk-of-support")
    assert SecretStore(first.home.secrets, "support").require("UPSTREAM") == "sk-of-support"
    assert [secret.agent for secret in stored_secrets(first.home.secrets)] == [None, "support"]
    SecretStore(first.home.secrets, "support").remove("UPSTREAM")
    assert SecretStore(second.home.secrets, "support").get("UPSTREAM") is None

    issuer, reader = WebTokens(first.home.token_keys), WebTokens(second.home.token_keys)
    assert reader.read("ey.a.b") is None  # it has looked before there is a key
    token = issuer.make(LOCAL_TOKEN, LOCAL_TOKEN.grants, 60)
    assert reader.read(token) == (LOCAL_TOKEN.id, LOCAL_TOKEN.grants)
    made_here = FeedbackTokens.with_key(first.home.feedback_key).make("support", "t1", "key_1")
    there = FeedbackTokens.with_key(second.home.feedback_key)
    assert there.objection(made_here, "support", "t1") is None


def test_a_changed_secret_shows_on_the_other_host(hosts: tuple[Workspace, Workspace]) -> None:
    first, second = hosts
    before = key_files.version(second.home.secrets)
    assert key_files.version(second.home.secrets) == before
    SecretStore(first.home.secrets).set("UPSTREAM", "sk-of-tomorrow")
    until(lambda: key_files.version(second.home.secrets) != before)


def test_the_audit_log_of_two_hosts_is_one_chain(hosts: tuple[Workspace, Workspace]) -> None:
    for number in range(3):
        for ws in hosts:
            keys.add(ws, f"key-{number}-of-{ws.home.path.name}")
    for ws in hosts:
        verdict = audit.verify(ws)
        assert (verdict.rows, verdict.problem, verdict.beyond_head) == (7, None, 0)
    last = sa.text("DELETE FROM audit WHERE number = 7")
    hosts[0].db.write(lambda connection: connection.execute(last))
    assert audit.verify(hosts[1]).problem == "rows 7 to 7 are missing at the end"


def test_a_value_in_the_place_of_another_is_refused(hosts: tuple[Workspace, Workspace]) -> None:
    first, second = hosts
    SecretStore(first.home.secrets).set("OTHER", "sk-other")
    column, names = cluster_keys.c.sealed, cluster_keys.c.name
    with first.db.read() as connection:
        sealed = connection.execute(sa.select(column).where(names == "secrets/OTHER")).scalar()
    swap = cluster_keys.update().where(names == "secrets/UPSTREAM").values(sealed=sealed)
    first.db.write(lambda connection: connection.execute(swap))
    with pytest.raises(StorageError, match=r"secrets/UPSTREAM.*was changed since"):
        SecretStore(second.home.secrets).get("UPSTREAM")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, r"THUMBWHEEL_CLUSTER_KEY: it is not set.*openssl rand -base64 32"),
        ("not base64!", "it is not base64"),
        (base64.b64encode(b"short").decode(), "it has 5 bytes, not 32"),
        (new_key(), "it is not the key of this cluster"),
    ],
    # a key is random, and the name of a test may not be
    ids=["missing", "no base64", "short", "of another"],
)
def test_without_the_key_of_the_cluster_nothing_opens_or_joins(
    hosts: tuple[Workspace, Workspace], tmp_path: Path, url: str, key: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        opened(tmp_path / "second", url, key)
    assert key is None or key not in str(raised.value)
    for act in (cluster.join, cluster.initialise):
        with pytest.raises(ConfigError, match=message):
            act(
                Home.at(tmp_path / ("third" if act is cluster.join else "first")),
                variables(url, key),
            )
    assert not (tmp_path / "third").exists()


def test_a_home_with_sqlite_is_told_to_move_first(tmp_path: Path) -> None:
    opened(tmp_path / "home", SQLITE, None).db.close()
    for act in (cluster.initialise, cluster.join):
        with pytest.raises(ConfigError, match=r"rows are in SQLite.*thumbwheel db copy sqlite URL"):
            act(Home.at(tmp_path / "home"), variables(SQLITE))
        with pytest.raises(ConfigError, match=r"THUMBWHEEL_DATABASE: it names no PostgreSQL"):
            act(Home.at(tmp_path / "new"), variables(SQLITE))
    assert not (tmp_path / "new").exists()


def test_who_may_not_join(tmp_path: Path, url: str, databases: Databases) -> None:
    first = Home.at(tmp_path / "first")
    with pytest.raises(ConfigError, match=r"no cluster was made of it.*thumbwheel cluster init"):
        cluster.join(Home.at(tmp_path / "second"), variables(url))
    opened(first.path, url, None).db.close()
    with pytest.raises(ConfigError, match="no cluster was made of it"):
        cluster.join(Home.at(tmp_path / "second"), variables(url))
    empty = databases.empty()
    try:
        with pytest.raises(ConfigError, match="no cluster was made of it"):
            cluster.join(Home.at(tmp_path / "second"), variables(empty))
    finally:
        databases.drop(empty)
    assert not (tmp_path / "second").exists()

    cluster.initialise(first, variables(url))
    opened(tmp_path / "other", SQLITE, None).db.close()
    with pytest.raises(ConfigError, match=r"a home of its own already.*'sqlite'"):
        cluster.join(Home.at(tmp_path / "other"), variables(url))
    make_seal(Home.at(tmp_path / "old").prepare().access_key)
    with pytest.raises(ConfigError, match=r"files of a home of its own: access.key"):
        cluster.join(Home.at(tmp_path / "old"), variables(url))
    with pytest.raises(ConfigError, match="contains the rows of another home"):
        opened(tmp_path / "second", url)  # not without joining
    for _ in range(2):
        cluster.join(Home.at(tmp_path / "second"), variables(url))
    with opened(tmp_path / "second", url) as ws:
        assert ws.is_shared


def test_another_version_cannot_join_and_an_upgraded_host_lifts_the_cluster(
    hosts: tuple[Workspace, Workspace], tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "__version__", "0.10.0")
    with pytest.raises(ConfigError, match=r"thumbwheel 0.10.0 of this host: .* run 0.1.0"):
        cluster.join(Home.at(tmp_path / "third"), variables(url))
    with opened(tmp_path / "first", url):
        assert cluster.join(Home.at(tmp_path / "third"), variables(url)).version == "0.10.0"
    monkeypatch.setattr(cluster, "__version__", "0.9.0")
    with opened(tmp_path / "first", url), pytest.raises(ConfigError, match=r"run 0\.10\.0"):
        cluster.join(Home.at(tmp_path / "fourth"), variables(url))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"code": "0123456789ab"}, r"with code 0123456789ab of this host: host .* with code [^0]"),
        (
            {"ray": "2.59.0"},
            r"Ray 2\.59\.0 with Python \S+ of this host: .* runs Ray 2\.60\.0 with",
        ),
        ({"python": "3.11.0"}, r"Ray 2\.60\.0 with Python 3\.11\.0 of this host: "),
        ({"ray": None, "python": "3.11.0"}, None),
    ],
    ids=["code", "ray", "python", "no ray"],
)
def test_a_host_with_other_software_cannot_join(
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str | None],
    message: str | None,
) -> None:
    software = replace(software_of_host(), ray="2.60.0")
    monkeypatch.setattr(cluster, "software_of_host", lambda: software)
    cluster.initialise(Home.at(tmp_path / "first"), variables(url))
    other = replace(software, **changed)
    for module in (cluster, host_software):
        monkeypatch.setattr(module, "software_of_host", lambda: other)
    second = Home.at(tmp_path / "second")
    if message is None:
        cluster.join(second, variables(url))
        assert noted_ownership(second) is not None
        return
    with pytest.raises(ConfigError, match=message) as raised:
        cluster.join(second, variables(url))
    assert f"thumbwheel cluster forget {folder_id(Home.at(tmp_path / 'first'))}" in str(
        raised.value
    )
    assert not second.path.exists()
    with opened(tmp_path / "first", url) as ws:
        assert [host.is_this for host in cluster_hosts(ws)] == [True]
        # the same host is upgraded: it says so when its server or a worker starts, and others join
        set_software(ws.db, ws.home, as_row(other))
    cluster.join(second, variables(url))


@pytest.mark.parametrize("hours", [-26, -1, 1, 26])
def test_a_host_whose_clock_is_wrong_cannot_join(
    hosts: tuple[Workspace, Workspace], tmp_path: Path, url: str, hours: int
) -> None:
    def now() -> datetime:
        return datetime.now(UTC) + timedelta(hours=hours)

    words = "ahead of" if hours > 0 else "behind"
    with hosts[0].db.read() as connection:
        require_same_clock(connection)
        with pytest.raises(ConfigError, match=rf"{words} that of the database.*timedatectl"):
            require_same_clock(connection, now)
        assert round(clock_difference(connection, now) / 3600, 2) == hours


@pytest.mark.parametrize("act", [cluster.join, cluster.initialise])
def test_a_wrong_clock_changes_nothing(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, act: Callable[..., object]
) -> None:
    first = Home.at(tmp_path / "first")
    if act is cluster.join:
        cluster.initialise(first, variables(url))
    else:
        opened(first.path, url, None).db.close()

    def refuse(connection: sa.Connection) -> None:
        host_software.require_same_clock(connection, lambda: datetime(2000, 1, 1, tzinfo=UTC))

    monkeypatch.setattr(cluster, "require_same_clock", refuse)
    home = first if act is cluster.initialise else Home.at(tmp_path / "second")
    with pytest.raises(
        ConfigError, match=r"2000-01-01 00:00:00 UTC\): it is .* behind that of the"
    ):
        act(home, variables(url))
    if act is cluster.join:
        assert not home.path.exists()
    else:
        with opened(first.path, url, None) as ws:
            assert not ws.is_shared


def test_a_host_of_another_schema_cannot_join_and_migrates_nothing(
    hosts: tuple[Workspace, Workspace], tmp_path: Path, url: str
) -> None:
    """Two installations from git may have one version and different migrations."""
    older = sa.text("UPDATE alembic_version SET version_num = 'tw0014'")
    hosts[0].db.write(lambda connection: connection.execute(older))
    with pytest.raises(ConfigError, match=r"revision tw\d+, and the other hosts write tw0014"):
        cluster.join(Home.at(tmp_path / "third"), variables(url))
    with hosts[0].db.read() as connection:
        query = sa.text("SELECT version_num FROM alembic_version")
        assert connection.execute(query).scalar() == "tw0014"
    assert not (tmp_path / "third").exists()


def test_who_has_the_home_open_while_it_becomes_a_cluster_writes_nothing_more(
    tmp_path: Path, url: str
) -> None:
    with opened(tmp_path / "home", url, None) as server:
        keys.add(server, "before")
        cluster.initialise(Home.at(tmp_path / "home"), variables(url))
        with pytest.raises(StorageError, match="Start it again"):
            keys.add(server, "after")
    with opened(tmp_path / "home", url) as ws:
        assert [key.name for key in keys.listed(ws)] == ["before"]


@pytest.mark.parametrize("step", ["set_home_id", "_remove_files"])
def test_an_init_that_is_killed_is_completed_by_the_next(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    home = Home.at(tmp_path / "home")
    with opened(home.path, url, None) as ws:
        keys.add(ws, "app")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cluster, step, killed)
        with pytest.raises(KeyboardInterrupt):
            cluster.initialise(home, variables(url))
    cluster.initialise(home, variables(url))
    with opened(home.path, url) as ws:
        assert audit.verify(ws).problem is None and ws.is_shared
        keys.add(ws, "later")
    assert keys_in(home) == set()


def test_a_cluster_moves_back_to_one_machine(
    hosts: tuple[Workspace, Workspace], tmp_path: Path, url: str
) -> None:
    first, second = hosts
    ingest(second, AGENT, "jsonl", write(tmp_path / "lines.jsonl", lines_of(0)))
    keys.add(second, "app")
    moved = move(first.home, url, SQLITE, variables(url))
    assert "Its keys are in this folder" in moved.next_step
    first.__exit__(None, None, None)
    with opened(first.home.path, SQLITE, None) as ws:
        assert not ws.is_shared
        assert SecretStore(ws.home.secrets).require("UPSTREAM") == SECRET
        assert audit.verify(ws).problem is None
        keys.add(ws, "later")
        assert audit.verify(ws).beyond_head == 0
    with pytest.raises(ConfigError, match="contains the rows of another home"):
        opened(second.home.path, url)


def test_a_backup_of_a_cluster_is_a_home_of_its_own(
    hosts: tuple[Workspace, Workspace], tmp_path: Path
) -> None:
    keys.add(hosts[1], "app")
    back_up(hosts[1], tmp_path / "backup.tar")
    home = Home.at(tmp_path / "restored")
    backend = backend_at(home, SQLITE, "test")
    restore(home, backend, tmp_path / "backup.tar", keep_access=True)
    with opened(home.path, SQLITE, None) as ws:
        assert not ws.is_shared
        assert {key.name for key in keys.listed(ws)} == {"before", "app"}
        assert audit.verify(ws).problem is None


def test_a_dataset_of_one_host_is_one_of_the_other_where_blobs_are_shared(
    hosts: tuple[Workspace, Workspace], tmp_path: Path
) -> None:
    """As by a network file system that is mounted on both."""
    first, second = hosts
    second.home.blobs.rmdir()
    second.home.blobs.symlink_to(first.home.blobs)
    lines = [line for person in range(12) for line in lines_of(person)]
    ingest(first, AGENT, "jsonl", write(tmp_path / "lines.jsonl", lines))
    dataset = build(first, AGENT, "labels")
    assert by_id(second, dataset.id).manifest == dataset.manifest
    for split in ("train", "dev", "gate"):
        rows_there = list(load_rows(second, dataset.id, split))
        assert rows_there == list(load_rows(first, dataset.id, split))
    assert build(second, AGENT, "labels").id == dataset.id
    with first.db.read() as connection:
        rows = connection.exec_driver_sql("SELECT CAST(d AS text) FROM datasets AS d").scalars()
        assert not any(str(ws.home.path) in row for row in rows for ws in hosts)


def test_a_run_of_another_host_is_left_to_it(hosts: tuple[Workspace, Workspace]) -> None:
    """Its folder is not here, which does not mean that it is gone."""
    first, second = hosts
    ensure_agent(first, "support")
    dataset = record(first, datasets, "support", shape="pairs")
    values = {"algorithm": "dpo", "dataset_id": dataset, "base": "base", "state": "running"}
    record(first, runs, "support", id="run_a", folder=folder_id(first.home), **values)
    (first.home.runs / "run_a").mkdir()
    assert settle_killed(second) == []
    (run,) = train.runs(second, Agent.named("support"))
    assert run.state is RunState.RUNNING
    with pytest.raises(Conflict, match=r"checkpoints are in the folder of host \S+ \(folder"):
        train.resume(second, run)
    assert len(settle_killed(first)) == 1  # nobody holds its lock there


def test_a_server_of_models_is_watched_and_reached_on_its_own_host(
    hosts: tuple[Workspace, Workspace],
) -> None:
    first, second = hosts
    ensure_agent(first, "support")
    version = ensure_base(first, "support", "base", "f")
    endpoint = Endpoint("http://127.0.0.1:9/v1", "support-v0", {"host": "http://127.0.0.1:9"})

    def insert(connection: sa.Connection) -> str:
        folder = folder_id(first.home)
        new = deployment_store.insert(connection, version, None, "ollama", "n", {}, folder)
        (row,) = deployment_store.find(connection, first.home, deployment_store.by_id(new))
        deployment_store.set_state(connection, first.home, row, DeploymentState.WARM, endpoint, {})
        return new

    deployment_id = first.db.write(insert)
    for ws, is_elsewhere in ((first, False), (second, True)):
        (deployment,) = routing.deployments(ws, Agent.named("support"))
        assert deployment.id == deployment_id
        assert routing.is_elsewhere(deployment) is is_elsewhere
        watch = DeploymentWatch(ws, lambda row=deployment: [row], lambda: None)
        watch._once()
        assert [watched.deployment.id for watched in watch.down()] == (
            [] if is_elsewhere else [deployment_id]
        )
    with pytest.raises(Conflict, match=r"it answers on host .* only, .*Set host\.address there"):
        upstream_of(second, deployment)
