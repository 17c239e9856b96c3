"""How `thumbwheel train METHOD` shows itself, and `thumbwheel hardware`. The command itself is in
loop/cycle_commands.py, for it can go on to the gate and beyond."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from thumbwheel.training.algorithms import ALGORITHMS

NOT_APPROVED = 1
"""Exit code of a run that ended as it should and gave no candidate: it learned nothing, or the gate
rejected what it gave."""


def method_help(name: str) -> str:
    """What `train NAME --help` opens with."""
    product = (
        "a reward model: rm1, rm2, ..."
        if ALGORITHMS.get(name).name == "reward"
        else "a candidate version"
    )
    example = f"thumbwheel train {name} --agent support --base ./my-base"
    return (
        f"Train by {name}, on the {ALGORITHMS.get(name).needs} that the feedback gives, and keep "
        f"the result as {product}.\n\n"
        f"Example: {example}\n\nSay what it would take first: {example} --dry-run"
    )


def show_result(result: dict[str, Any], agent: str, name: str) -> None:
    """How a run ended, and what to do next."""
    from thumbwheel.core import log

    log.table(f"run {result['run_id']}", ("", "base", "best"), _figures(result["metrics"]))
    for reason, count in result["metrics"].get("dropped", {}).items():
        log.say(f"dropped: {reason} ({count})")
    if result["reason"]:
        log.say(result["reason"])
    if result["state"] == "nothing_learned":
        log.say(f"nothing was made of it; next: {_after_nothing(agent, name)}")
    elif result["reward_model"]:
        log.say(
            f"reward model {result['reward_model']}; next: thumbwheel reward-model show "
            f"{result['reward_model']} --agent {agent}"
        )
    elif result["version"]:
        log.say(
            f"candidate {result['version']}; next: thumbwheel evaluate {result['version']} "
            f"--agent {agent}"
        )
    else:
        command = f"thumbwheel train {name} --agent {agent} --resume {result['run_id']}"
        log.say(f"stopped at step {result['metrics'].get('steps', 0)}; go on: {command}")


def _after_nothing(agent: str, name: str) -> str:
    health = f"thumbwheel dataset health {ALGORITHMS.get(name).needs} --agent {agent}"
    return (
        f"see what the feedback holds ({health}), collect more of it, or try another "
        "learning_rate or "
        "more epochs. --no-require-gain keeps the result all the same"
    )


def _figures(metrics: dict[str, Any]) -> list[tuple[str, str, str]]:
    base, best = metrics.get("dev_base") or {}, metrics.get("dev_best") or {}
    names = [name for name in best if name.startswith("eval_")]
    rows = [
        (f"dev {name.removeprefix('eval_')}", _number(base.get(name)), _number(best[name]))
        for name in names
    ]
    steps = f"{metrics.get('best_step') or '-'} of {metrics.get('steps')}"
    return [("step", "0", steps), *rows]


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else "-"


def show_dry_run(dry_run: dict[str, Any], as_json: bool) -> None:
    """What a run would take."""
    from thumbwheel.core import log
    from thumbwheel.datasets.row_stats import Scores

    if as_json:
        log.answer(dry_run)
        return
    counted = {"dropped": "", "notes": "", "memory_gb": " GB"}
    shown_below = {"held_out_rows", "detectable_gain", "detectable_gain_of", "scores"}
    plain = {
        name: value
        for name, value in dry_run.items()
        if name not in counted and name not in shown_below
    }
    rows = [
        (name.replace("_", " "), "; ".join(value) if isinstance(value, list) else value)
        for name, value in plain.items()
    ]
    for name, unit in counted.items():
        rows += [
            (f"{name.removesuffix('_gb')}: {part.replace('_', ' ')}", f"{count}{unit}")
            for part, count in dry_run[name].items()
        ]
    log.table("dry run: nothing was trained", ("", ""), rows)
    if scores := dry_run["scores"]:
        log.say(f"scores: {Scores(**scores)}")
    log.say(
        f"time and memory: {dry_run['probed_steps']} real steps on this machine as it is now, and "
        f"{dry_run['past_runs']} past runs like it"
    )
    gain, about = (
        dry_run["detectable_gain"],
        {"answers": "at 30 % discordance", "AUC": "of AUC (good answers ranked above bad ones)"},
    )
    shows = (
        "too few to decide on"
        if gain is None
        else f"about {100 * gain:.0f} points {about[dry_run['detectable_gain_of']]}"
    )
    log.say(f"held-out rows of the later evaluation: {dry_run['held_out_rows']}, {shows}")


def hardware(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Processor, memory, accelerators and disk, what each preset chooses here, and which one `auto`
    means.

    Example: thumbwheel hardware
    """
    from dataclasses import asdict

    from thumbwheel.core import log
    from thumbwheel.training.hardware import disk_free_gb, machine
    from thumbwheel.training.presets import PRESETS, choose, preset_settings, tier

    this_machine = machine()
    free = disk_free_gb(ctx.obj.folder)
    chosen = {name: preset_settings(name, this_machine)[1] for name in ("auto", *PRESETS)}
    if as_json:
        fields = asdict(this_machine) | {
            "disk_free_gb": free,
            "comfortable_base": tier(this_machine).model,
        }
        log.answer({"machine": fields, "auto": choose(this_machine), "presets": chosen})
        return
    log.table(
        "this machine",
        ("", ""),
        [*_machine_lines(asdict(this_machine)), ("disk free", _size(free))],
    )
    rows = [
        (
            name,
            PRESETS[name].what
            if name in PRESETS
            else f"{choose(this_machine)}, as far as it changes no result",
            _listed(values),
        )
        for name, values in chosen.items()
    ]
    log.table(
        "presets (train METHOD --preset NAME; every setting can be overridden)",
        ("preset", "", "chooses here"),
        rows,
    )
    log.say(
        f"comfortable here: base models of about {tier(this_machine).model} parameters; --dry-run "
        "measures a real one"
    )


def _machine_lines(fields: dict[str, Any]) -> list[tuple[str, str]]:
    features = {"avx2": "AVX2", "avx512": "AVX-512", "bf16": "bfloat16"}
    lines = [
        ("processor", fields["cpu"]),
        ("cores", f"{fields['cores'] or 'unknown'} physical, {fields['threads']} logical"),
        (
            "arithmetic",
            ", ".join(f"{name} {_known(fields[key])}" for key, name in features.items()),
        ),
        ("memory", f"{_size(fields['ram_gb'])}, {_size(fields['available_gb'])} available"),
    ]
    if fields["gpus"] is None:
        return [
            *lines,
            ("GPU", "unknown: torch is not installed (pip install 'thumbwheel[train]')"),
        ]
    shown = [f"{gpu['name']} ({gpu['kind']}), {_size(gpu['memory_gb'])}" for gpu in fields["gpus"]]
    return [*lines, *(("GPU", line) for line in shown or ["none"])]


def _known(flag: bool | None) -> str:
    return "unknown" if flag is None else "yes" if flag else "no"


def _size(size: float | None) -> str:
    return "unknown" if size is None else f"{size:.1f} GB"


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "the defaults"
