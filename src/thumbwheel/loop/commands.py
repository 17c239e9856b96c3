"""The `models` group and the `report` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

models = typer.Typer(help="List versions, show one, follow its lineage.")

Agent = Annotated[str, typer.Option(help="The agent whose versions are meant.")]
Version = Annotated[str, typer.Argument(help="v3, an alias, or latest.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]


@models.command("list")
def list_(ctx: typer.Context, agent: Agent, json: AsJson = False) -> None:
    """All versions of an agent, oldest first."""
    from dataclasses import asdict

    from thumbwheel.core import log
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        found = versions.versions(ws, agent)
        aliases = versions.aliases_of(ws, agent)
    names = {
        one.id: sorted(alias for alias, at in aliases.items() if at == one.id) for one in found
    }
    if json:
        log.answer([{**asdict(one), "name": one.name, "aliases": names[one.id]} for one in found])
        return
    numbered = {one.id: one.name for one in found}
    rows = [
        (
            one.name,
            _state(one),
            ", ".join(names[one.id]),
            numbered.get(one.parent_id or ""),
            one.run_id,
            f"{one.recorded_at:%Y-%m-%d %H:%M}",
        )
        for one in found
    ]
    log.table(
        f"versions of {agent}", ("version", "state", "aliases", "parent", "run", "recorded"), rows
    )


def _state(one: Any) -> str:
    basis = (
        " (canary only)"
        if one.basis == "feedback" and one.state == "approved"
        else f" ({one.basis})"
        if one.basis
        else ""
    )
    return f"{one.state}{basis}{', tainted' if one.tainted else ''}"


@models.command()
def endpoint(
    ctx: typer.Context,
    url: Annotated[
        str,
        typer.Argument(help="The OpenAI-compatible API, for example https://api.example.com/v1."),
    ],
    agent: Agent,
    model: Annotated[str, typer.Option(help="The model, as that API calls it.")],
    price_in: Annotated[
        float | None, typer.Option(min=0, help="Price of a million tokens of prompts.")
    ] = None,
    price_out: Annotated[
        float | None, typer.Option(min=0, help="Price of a million tokens of answers.")
    ] = None,
    json: AsJson = False,
) -> None:
    """A model that somebody else serves as a version: v0, where it is what runs today; evaluations
    then show its quality and its price.

    Its key is read from THUMBWHEEL_ENDPOINT_KEY when it is asked, and stored nowhere.

    Example: thumbwheel models endpoint https://api.example.com/v1 --agent support --model large
    --price-in 2.5 --price-out 10
    """
    from dataclasses import asdict

    from thumbwheel.core import log
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        found = versions.add_endpoint(ws, agent, url, model, price_in, price_out)
    if json:
        log.answer({**asdict(found), "name": found.name})
    else:
        log.say(
            f"{found.name} of {agent} is {found.base}. Compare: thumbwheel evaluate latest "
            f"--agent {agent} --against {found.name}"
        )


@models.command()
def show(ctx: typer.Context, version: Version, agent: Agent, json: AsJson = False) -> None:
    """One version: what it is made of, what was measured and decided.

    Example: thumbwheel models show latest --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.loop.report import collect

    with ctx.obj() as ws:
        found = collect(ws, agent, version)
    if json:
        log.answer(found)
        return
    one = found["lineage"]["version"]
    rows = [
        ("state", one["state"]),
        ("base", one["base"]),
        ("fingerprint", one["base_fingerprint"]),
        ("run", one["run_id"]),
    ]
    rows += [(f"adapter {name}", sha256) for name, sha256 in (one["adapter"] or {}).items()]
    log.table(f"{agent} {found['version']}", ("", ""), rows + _measured(found["summary"]))


def _measured(summary: dict[str, Any] | None) -> list[tuple[str, object]]:
    from thumbwheel.loop.formatting import percent, points

    if summary is None:
        return [("evaluation", "none yet")]
    gain = f"{points(summary['gain'])} points [{points(summary['low'])}, {points(summary['high'])}]"
    measured = (
        f"{percent(summary['before'])} -> {percent(summary['after'])}, {gain}, basis "
        f"{summary['basis']}"
    )
    return [
        (summary["name"], measured),
        ("decision", summary["decision"]),
        *(("", reason) for reason in summary["reasons"]),
    ]


@models.command()
def lineage(
    ctx: typer.Context,
    agent: Agent,
    version: Annotated[str | None, typer.Argument(help="v3, an alias, or latest.")] = None,
    of: Annotated[
        str | None,
        typer.Option(help="A feedback, trace or subject id instead: what learned from it?"),
    ] = None,
    json: AsJson = False,
) -> None:
    """From a version back to the feedback; or with --of, from a piece of feedback to the versions
    that learned from it."""
    from thumbwheel.core import log
    from thumbwheel.core.errors import InputError
    from thumbwheel.loop import lineage as verbs

    if (version is None) == (of is None):
        raise InputError(
            "models lineage",
            "it needs a version or --of, one of them",
            "For example: thumbwheel models lineage v1 --agent A",
        )
    with ctx.obj() as ws:
        if of is not None:
            _show_uses(verbs.uses(ws, agent, of), of, json)
            return
        found = verbs.lineage(ws, agent, version or "")
    if json:
        log.answer(found.to_json())
        return
    for depth, text in verbs.tree(found):
        log.show("   " * depth + text)


def _show_uses(found: list[Any], of: str, json: bool) -> None:
    from dataclasses import asdict

    from thumbwheel.core import log

    if json:
        log.answer([{**asdict(one), "role": one.role} for one in found])
        return
    rows = [
        (
            one.version,
            one.role + (f" through {one.through}" if one.through else ""),
            ", ".join(f"{split} {count}" for split, count in one.rows.items()),
            one.run_id,
        )
        for one in found
    ]
    log.table(
        f"versions with {of} in their data" if rows else f"no version has {of} in its data",
        ("version", "role", "rows", "run"),
        rows,
    )


@models.command()
def alias(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The alias, for example live or canary.")],
    version: Version,
    agent: Agent,
) -> None:
    """Point an alias at an approved version, in one step.

    Example: thumbwheel models alias live v3 --agent support
    """
    from thumbwheel.core import log
    from thumbwheel.deploy import switch
    from thumbwheel.evaluation.approval import require_approval
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        one = versions.version(ws, agent, version)
        versions.check_alias_name(name)
        require_approval(ws, one, name)
        if any(
            row.state == "warm" for row in switch.deployments(ws, agent)
        ):  # an alias then moves together with what answers for it
            switch.promote(ws, agent, version, name, reason="named by hand")
        else:
            versions.point(ws, agent, name, one)
    log.say(f"{name} is now {one.name}")


def report(
    ctx: typer.Context,
    version: Version,
    agent: Agent,
    to: Annotated[
        Path | None, typer.Option(help="The HTML file [default: ./AGENT-VERSION.html].")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write the values as JSON to this file.")
    ] = None,
) -> None:
    """The model change report of a version: one HTML file that fetches nothing, and JSON.

    Example: thumbwheel report latest --agent support --to report.html
    """
    from thumbwheel.core import log
    from thumbwheel.loop.report import report as write
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        name = versions.version(ws, agent, version).name
        done = write(ws, agent, version, to or Path(f"{agent}-{name}.html"), json)
    for path in (done.path, done.json_path):
        if path is not None:
            log.say(f"written: {path.absolute()}")
