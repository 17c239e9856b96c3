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
    method = ALGORITHMS.get(name)
    result = "a candidate version"
    if method.produces_reward_model:
        result = "a reward model: rm1, rm2, ..."
    example = f"thumbwheel train {name} --agent support --base ./my-base"
    return (
        f"Train by {name}, on the {method.needs} that the feedback gives, and keep "
        f"the result as {result}.\n\n"
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
        "learning_rate or more epochs. --no-require-gain keeps the result all the same"
    )


def _figures(metrics: dict[str, Any]) -> list[tuple[str, str, str]]:
    base, best = metrics.get("dev_base") or {}, metrics.get("dev_best") or {}
    rows = [("step", "0", f"{metrics.get('best_step') or '-'} of {metrics.get('steps')}")]
    for name, value in best.items():
        if name.startswith("eval_"):
            label = f"dev {name.removeprefix('eval_')}"
            rows.append((label, _number(base.get(name)), _number(value)))
    return rows


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else "-"


def show_dry_run(dry_run: dict[str, Any], as_json: bool) -> None:
    """What a run would take."""
    from thumbwheel.core import log
    from thumbwheel.datasets.row_stats import RowStats

    if as_json:
        log.answer(dry_run)
        return

    # Plain figures first, then those that are counted by part; the rest is said below the table.
    counted = {"dropped": "", "notes": "", "memory_gb": " GB"}
    said_below = {"held_out_rows", "detectable_gain", "detectable_gain_of", "scores"}
    rows: list[tuple[str, Any]] = []
    for name, value in dry_run.items():
        if name not in counted and name not in said_below:
            shown = "; ".join(value) if isinstance(value, list) else value
            rows.append((name.replace("_", " "), shown))
    for name, unit in counted.items():
        for part, count in dry_run[name].items():
            label = f"{name.removesuffix('_gb')}: {part.replace('_', ' ')}"
            rows.append((label, f"{count}{unit}"))
    log.table("dry run: nothing was trained", ("", ""), rows)

    if scores := dry_run["scores"]:
        log.say(f"scores: {RowStats(**scores)}")
    log.say(
        f"time and memory: {dry_run['probed_steps']} real steps on this machine as it is now, and "
        f"{dry_run['past_runs']} past runs like it"
    )
    gain, shows = dry_run["detectable_gain"], "too few to decide on"
    if gain is not None:
        gain_of = {
            "answers": "at 30 % discordance",
            "AUC": "of AUC (good answers ranked above bad ones)",
        }
        shows = f"about {100 * gain:.0f} points {gain_of[dry_run['detectable_gain_of']]}"
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
    from thumbwheel.core.hardware import disk_free_gb, machine
    from thumbwheel.training.presets import PRESETS, choose, preset_settings, tier

    here = machine()
    free, chosen, comfortable = disk_free_gb(ctx.obj.folder), choose(here), tier(here).model
    settings = {name: preset_settings(name, here)[1] for name in ("auto", *PRESETS)}
    if as_json:
        fields = asdict(here) | {"disk_free_gb": free, "comfortable_base": comfortable}
        log.answer({"machine": fields, "auto": chosen, "presets": settings})
        return
    lines = [*_machine_lines(asdict(here)), ("disk free", _size(free))]
    log.table("this machine", ("", ""), lines)
    rows = []
    for name, values in settings.items():
        meaning = f"{chosen}, as far as it changes no result"
        if name in PRESETS:
            meaning = PRESETS[name].what
        rows.append((name, meaning, _listed(values)))
    log.table(
        "presets (train METHOD --preset NAME; every setting can be overridden)",
        ("preset", "", "chooses here"),
        rows,
    )
    log.say(
        f"comfortable here: base models of about {comfortable} parameters; --dry-run "
        "measures a real one"
    )


def _machine_lines(fields: dict[str, Any]) -> list[tuple[str, str]]:
    features = {"avx2": "AVX2", "avx512": "AVX-512", "bf16": "bfloat16"}
    arithmetic = [f"{name} {_yes_or_no(fields[key])}" for key, name in features.items()]
    lines = [
        ("processor", fields["cpu"]),
        ("cores", f"{fields['cores'] or 'unknown'} physical, {fields['threads']} logical"),
        ("arithmetic", ", ".join(arithmetic)),
        ("memory", f"{_size(fields['ram_gb'])}, {_size(fields['available_gb'])} available"),
    ]
    gpus = fields["gpus"]
    if gpus is None:
        missing = "unknown: torch is not installed (pip install 'thumbwheel[train]')"
        return [*lines, ("GPU", missing)]
    shown = [f"{gpu['name']} ({gpu['kind']}), {_size(gpu['memory_gb'])}" for gpu in gpus]
    return lines + [("GPU", line) for line in shown or ["none"]]


def _yes_or_no(flag: bool | None) -> str:
    if flag is None:
        return "unknown"
    return "yes" if flag else "no"


def _size(size: float | None) -> str:
    return "unknown" if size is None else f"{size:.1f} GB"


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "the defaults"
