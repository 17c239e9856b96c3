"""Keys, users and the audit log on both databases."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
import sqlalchemy as sa

from tests.waiting import until
from thumbwheel.access import audit, keys, users
from thumbwheel.access.audit import Act
from thumbwheel.access.credentials import Credentials
from thumbwheel.access.directory import Directory
from thumbwheel.access.gate import opened_gate
from thumbwheel.access.settings import AccessConfig
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict
from thumbwheel.core.seal import make_seal
from thumbwheel.db.schema import audit as rows
from thumbwheel.db.workspace import Workspace


def test_who_is_here_and_what_they_did(tmp_path: Path) -> None:
    with (
        Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as ws,
        Directory(ws) as directory,
    ):
        user = users.add(ws, "ann", password=None, role="rater", agent="support")
        secret = keys.add(ws, "anns", user="ann", days=1).secret
        mac = keys.mac_of(make_seal(ws.home.access_key), secret)
        directory.refresh()
        principal = directory.of_key(mac)
        assert principal is not None and principal.grants == {"support": frozenset({"rate"})}
        with pytest.raises(Conflict):
            keys.add(ws, "anns")

        acts = [Act(user.id, "case.add", "support", {"number": number}) for number in range(20)]
        threads = [Thread(target=audit.record, args=(ws, act)) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert audit.verify(ws) == audit.AuditVerdict(22, None, 0), "one chain of all of them"

        users.remove(ws, "ann")
        # a look that began before the removal may be the last one
        until(lambda: directory.of_key(mac) is None)
        assert directory.is_empty()
        assert audit.verify(ws).problem is None
        ws.db.write(lambda connection: connection.execute(sa.delete(rows).where(rows.c.number > 9)))
        assert audit.verify(ws).problem == "rows 10 to 23 are missing at the end"


def test_what_another_process_made_holds_at_once(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home").prepare()
    nowhere = Sources({}, "", {})
    config = AccessConfig()
    with (
        Workspace.open(home, nowhere) as ws,
        Workspace.open(home, nowhere) as others,
        opened_gate(ws, config, local=True, apps=False) as gate,
        opened_gate(others, config, local=True, apps=False) as others_gate,
    ):
        for number in range(30):
            key = keys.add(others, f"app-{number}")
            assert gate.identify(presented(key=key.secret)), number
            user = users.add(others, f"ann-{number}", password=None, role="rater", agent="support")
            assert gate.directory.of_id(user.id), number
            cookie = others_gate.open_session(user.id).cookie
            assert gate.identify(presented(session=cookie)), number


def presented(key: str | None = None, session: str | None = None) -> Credentials:
    return Credentials((key,) if key else (), session, csrf=None, is_foreign=False)
