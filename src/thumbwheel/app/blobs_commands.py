"""The command `blobs copy`: the files of a home move between its folder and a bucket."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from thumbwheel.core import present

blobs = typer.Typer()


@blobs.callback()
def _group() -> None:
    """Move datasets, adapters and documents between the folder of a home and a bucket."""


@blobs.command()
def copy(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(help="Where they are: folder, or s3://BUCKET/PREFIX.", metavar="FROM")
    ],
    target: Annotated[
        str,
        typer.Argument(help="Where they go: folder, or s3://BUCKET/PREFIX.", metavar="TO"),
    ],
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete them at FROM once all of them are at TO.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be copied.")
    ] = False,
) -> present.Answer[Any]:
    """Copy the datasets, adapters and documents of the home to another place, and use them there.

    Every file is verified by its hash. When it was stopped, the same command goes on. Stop
    `thumbwheel serve` first, on every host, and change the setting blobs before you start it again.

    Example: thumbwheel blobs copy folder s3://my-bucket/thumbwheel
    """
    from thumbwheel.core.figures import size
    from thumbwheel.models.blob_move import move_blobs

    with ctx.obj() as ws:
        moved = move_blobs(ws, source, target, remove=delete, dry_run=dry_run)
    rows = [
        ("to copy" if dry_run else "copied", f"{moved.copied} files, {size(moved.copied_bytes)}"),
        ("there already", f"{moved.present} files"),
    ]
    if moved.removed:
        rows.append(("to delete" if dry_run else "deleted", f"{moved.removed} files"))
    page: list[present.Part] = [
        present.Table(f"{moved.source} to {moved.target}", ("blobs", ""), rows)
    ]
    if not dry_run:
        page.append(_next_step(moved.setting))
        if not delete:
            page.append(
                f"What is erased from now on stays at {source}: delete it there, or run the "
                "command again with --delete"
            )
    return present.page(moved.to_json(), page)


def _next_step(setting: str | None) -> str:
    if setting is None:
        return "Remove the setting blobs, then start: thumbwheel serve"
    return f"Set blobs to {setting} on every host, then start: thumbwheel serve"
