"""The commands `db copy`, `backup` and `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core import present

if TYPE_CHECKING:
    from thumbwheel.homes.backup import Backup

db = typer.Typer()


@db.callback()
def _group() -> None:
    """Move the rows of a home to another database, or remove old ones."""


@db.command()
def retain(
    ctx: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go, and what stays why.")
    ] = False,
) -> present.Answer[Any]:
    """Remove traces, and files of versions, that are older than the settings keep them (section
    retention), once.

    `thumbwheel serve` does it every hour. What a dataset, a gold case, an experiment or a
    comparison with a newer answer stands on stays, and is counted. So does a version that an alias,
    a deployment, an experiment, a dataset or a later version needs, and what was live before.

    Example: thumbwheel db retain --dry-run
    """
    from thumbwheel.homes.retention import retain as run

    with ctx.obj() as ws:
        results = run(ws, dry_run=dry_run)
    rows = []
    for result in results:
        stays = ", ".join(f"{count} for {why}" for why, count in sorted(result.stays.items()))
        date = f"{result.before:%Y-%m-%d}" if result.before else "never"
        rows.append((result.agent, date, result.removed["traces"], stays or "none"))
    heads = ("agent", "older than", "traces that go" if dry_run else "traces gone", "stay")
    page: list[present.Part] = [present.Table("Retention", heads, rows)]
    version_rows = []
    for result in results:
        stays = ", ".join(
            f"{count} for {why}" for why, count in sorted(result.versions_stay.items())
        )
        if result.retired or stays:
            version_rows.append((result.agent, ", ".join(result.retired) or "none", stays))
    if version_rows:
        heads_of_versions = ("agent", "files that go" if dry_run else "files gone", "stay")
        page.append(present.Table("Versions", heads_of_versions, version_rows))
    if not results:
        page.append(
            "Nothing is ever too old: set retention.days, retention.agents.AGENT, or "
            "retention.versions"
        )
    return present.page([result.to_json() for result in results], page)


@db.command()
def copy(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(help="Where the rows are: sqlite, or a URL.", metavar="FROM")
    ],
    target: Annotated[
        str, typer.Argument(help="An empty database: sqlite, or a URL.", metavar="TO")
    ],
) -> present.Answer[Any]:
    """Move the rows of the home from one database to another; its files stay where they are.

    All rows arrive or none. From then on the home uses the target, and the old database, which
    keeps its rows, is refused. Stop `thumbwheel serve` first. A password belongs into ~/.pgpass and
    not into the URL, where other users of the machine could see it.

    Example: thumbwheel db copy sqlite postgresql://me@localhost/thumbwheel
    """
    from thumbwheel.core.config import Home
    from thumbwheel.homes.move import move

    moved = move(Home.at(ctx.obj.home), source, target, ctx.obj.settings().environment)
    rows = [(table, count) for table, count in moved.rows.items() if count]
    page: list[present.Part] = [
        present.Table(f"Copied to {moved.target}", ("table", "rows"), rows),
        moved.next_step,
    ]
    return present.page(moved.to_json(), page)


def backup(
    ctx: typer.Context,
    target: Annotated[
        Path, typer.Argument(help="A new folder, or a new file that ends with .tar.", metavar="TO")
    ],
) -> present.Answer[Any]:
    """Write the rows, blobs, reports and keys of the home as they are now, while others write on.

    Example: thumbwheel backup /backups/monday.tar
    """
    from thumbwheel.homes.backup import back_up

    with ctx.obj() as ws:
        written = back_up(ws, target)
    return _backup_answer(written, f"Backed up to {written.path}")


def restore(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(help="What `thumbwheel backup` wrote.", metavar="FROM")],
    keep_access: Annotated[
        bool,
        typer.Option(
            "--keep-access",
            help="Keep its users, keys, sessions, deployments and paths: the backup is your own.",
        ),
    ] = False,
) -> present.Answer[Any]:
    """Make a new home of a backup, with its rows in SQLite or where THUMBWHEEL_DATABASE says. Every
    file is compared with its hash first. Jobs, schedules and loops in it wait for you; its users
    and keys are left out, and its deployments are ended, unless you keep them.

    Example: thumbwheel --home restored restore /backups/monday.tar
    """
    from thumbwheel.core.config import Home
    from thumbwheel.db.dialects import backend_of
    from thumbwheel.homes.backup import restore as run

    home = Home.at(ctx.obj.home)
    backend = backend_of(home, ctx.obj.settings().environment)
    restored = run(home, backend, source, keep_access=keep_access)
    return _backup_answer(restored, f"Restored to {home.path}")


def _backup_answer(backup: Backup, title: str) -> present.Answer[Any]:
    rows: list[tuple[str, object]] = [("taken at", backup.taken_at), ("bytes", backup.size)]
    rows += backup.counts().items()
    page: list[present.Part] = [present.Table(title, ("what", "how much"), rows)]
    if backup.missing:
        page.append(
            present.Note(
                f"{len(backup.missing)} blobs that rows name were not in the home: "
                f"{', '.join(backup.missing[:3])}"
            )
        )
    if backup.held_back:
        counts = ", ".join(f"{count} {what}" for what, count in backup.held_back.items())
        page.append(
            present.Note(
                f"Held back until you have looked: {counts} (thumbwheel jobs list, schedule list, "
                "loop status; jobs resume, schedule pause --resume, loop enable)"
            )
        )
    if backup.shut_out:
        counts = ", ".join(f"{count} {what}" for what, count in backup.shut_out.items())
        page.append(
            present.Note(
                f"Left out, so that nobody enters who is not yours, no call goes where the backup "
                f"says, and no file is read or changed that it names: {counts}. Deploy and export "
                "again what you need. If the backup is yours, restore it into another new home "
                "with --keep-access"
            )
        )
    return present.page(backup.to_json(), page)
