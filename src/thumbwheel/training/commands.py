"""How `thumbwheel train METHOD` shows itself, and `thumbwheel hardware`. The command itself is in
loop/cycle_commands.py, for it can go on to the gate and beyond."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields as fields_of
from typing import Any

import typer

from thumbwheel.core import present
from thumbwheel.core.figures import about, size
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.types import DryRun, Hardware, RunResult, RunState, ShownMachine

NOT_APPROVED = 1
"""Exit code of a run that ended as it should and gave no candidate: it learned nothing, or the gate
rejected what it gave."""


def method_help(name: str) -> str:
    """Return the opening text of `train NAME --help`."""
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


def result_page(result: RunResult, agent: str, name: str) -> Iterator[present.Part]:
    """Show how a run ended, and what to do next."""
    metrics = result.metrics
    yield present.Table(f"run {result.run_id}", ("", "base", "best"), _figures(metrics))
    for reason, count in metrics.get("dropped", {}).items():
        yield present.Note(f"dropped: {reason} ({count})")
    if result.reason:
        yield present.Note(result.reason)
    yield present.Note(_next_step(result, agent, name))


def _next_step(result: RunResult, agent: str, name: str) -> str:
    if result.state == RunState.NOTHING_LEARNED:
        refused = result.metrics.get("steps") == 0
        advice = _after_refusal(agent) if refused else _after_nothing(agent, name)
        return f"nothing was made of it; next: {advice}"
    if reward_model := result.reward_model:
        command = f"thumbwheel reward-model show {reward_model} --agent {agent}"
        return f"reward model {reward_model}; next: {command}"
    if version := result.version:
        return f"candidate {version}; next: thumbwheel evaluate {version} --agent {agent}"
    command = f"thumbwheel train {name} --agent {agent} --resume {result.run_id}"
    return f"stopped at step {result.metrics.get('steps', 0)}; go on: {command}"


def _after_nothing(agent: str, name: str) -> str:
    health = f"thumbwheel dataset health {ALGORITHMS.get(name).needs} --agent {agent}"
    return (
        f"see what the feedback holds ({health}), collect more of it, or try another "
        "learning_rate or more steps (max_steps). --no-require-gain keeps the result all the same"
    )


def _after_refusal(agent: str) -> str:
    """Return the next steps after a reward model was refused before the first step."""
    return (
        f"let another method learn from the feedback itself (thumbwheel train sft --agent {agent}) "
        "or train the reward model again with more of it. --no-require-gain takes it as it is"
    )


def _figures(metrics: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    base, best = metrics.get("dev_base") or {}, metrics.get("dev_best") or {}
    rows = [("step", "0", f"{metrics.get('best_step') or '-'} of {metrics.get('steps')}")]
    for name, value in best.items():
        if name.startswith("eval_"):
            label = f"dev {name.removeprefix('eval_')}"
            rows.append((label, _number(base.get(name)), _number(value)))
    return rows


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else "-"


def dry_run_page(plan: DryRun) -> Iterator[present.Part]:
    """Show what a run would need: first in words, then figure by figure."""
    from thumbwheel.datasets.row_stats import ScoreStatistics

    yield f"{_needs(plan)}; nothing was trained"

    # Plain figures first, then those that are counted by part; the rest is said in words.
    in_words = {
        *("held_out_rows", "detectable_gain", "detectable_gain_of", "scores", "minutes"),
        *("memory_gb", "disk_gb", "evaluation"),
    }
    rows: list[tuple[str, Any]] = []
    for field in fields_of(plan):
        value = getattr(plan, field.name)
        if field.name not in ("dropped", "notes") and field.name not in in_words:
            shown = "; ".join(value) if isinstance(value, list | tuple) else value
            rows.append((field.name.replace("_", " "), shown))
    for name, counts in (("dropped", plan.dropped), ("notes", plan.notes)):
        for part, count in counts.items():
            rows.append((f"{name}: {part.replace('_', ' ')}", count))
    for part, gigabytes in plan.memory_gb.items():
        rows.append((f"memory: {part.replace('_', ' ')}", size(1e9 * gigabytes)))
    yield present.Table("dry run", ("", ""), rows)

    if plan.scores:
        yield present.Note(f"scores: {ScoreStatistics(**plan.scores)}")
    yield present.Note(
        f"time and memory: {plan.probed_steps} real steps on this machine as it is now, and "
        f"{plan.past_runs} past runs like it"
    )
    yield present.Note(plan.evaluation.in_words())
    gain_shown = "too few to decide on"
    if plan.detectable_gain is not None:
        gain_of = {
            "answers": "at 30 % discordance",
            "AUC": "of AUC (good answers ranked above bad ones)",
        }
        points = 100 * plan.detectable_gain
        gain_shown = f"about {points:.0f} points {gain_of[plan.detectable_gain_of]}"
    yield present.Note(f"held-out rows of the later evaluation: {plan.held_out_rows}, {gain_shown}")


def _needs(plan: DryRun) -> str:
    """Return time, memory and disk of a run in words."""
    parts = [f"{about(60 * plan.minutes)} on this machine"]
    peak = plan.memory_gb.get("peak")
    if peak:
        parts.append(f"{size(1e9 * peak)} of memory")
    parts.append(f"{size(1e9 * plan.disk_gb)} of disk")
    return ", ".join(parts)


def hardware(
    ctx: typer.Context,
) -> present.Answer[Hardware]:
    """Processor, memory, accelerators and disk, what each preset chooses here, and which one `auto`
    means.

    Example: thumbwheel hardware
    """
    from thumbwheel.core.hardware import disk_free_gb, machine
    from thumbwheel.training.presets import PRESETS, choose, preset_settings, tier

    here = machine()
    shown = ShownMachine(
        **vars(here),
        disk_free_gb=disk_free_gb(ctx.obj.folder),
        comfortable_base=tier(here).model,
    )
    settings = {name: preset_settings(name, here)[1] for name in ("auto", *PRESETS)}
    report = Hardware(shown, choose(here), settings)
    return present.page(report, _hardware_page(report))


def _hardware_page(report: Hardware) -> Iterator[present.Part]:
    from thumbwheel.training.presets import PRESETS

    lines = [*_machine_lines(report.machine), ("disk free", _size(report.machine.disk_free_gb))]
    yield present.Table("this machine", ("", ""), lines)
    rows = []
    for name, values in report.presets.items():
        meaning = f"{report.auto}, as far as it changes no result"
        if name in PRESETS:
            meaning = PRESETS[name].what
        rows.append((name, meaning, _listed(values)))
    title = "presets (train METHOD --preset NAME; every setting can be overridden)"
    yield present.Table(title, ("preset", "", "chooses here"), rows)
    yield present.Note(
        f"comfortable here: base models of about {report.machine.comfortable_base} parameters; "
        "--dry-run measures a real one"
    )


def _machine_lines(machine: ShownMachine) -> list[tuple[str, str]]:
    features = {"AVX2": machine.avx2, "AVX-512": machine.avx512, "bfloat16": machine.bf16}
    arithmetic = [f"{name} {_yes_or_no(flag)}" for name, flag in features.items()]
    memory = f"{_size(machine.ram_gb)}, {_size(machine.available_gb)} available"
    lines = [
        ("processor", machine.cpu),
        ("cores", f"{machine.cores or 'unknown'} physical, {machine.threads} logical"),
        ("arithmetic", ", ".join(arithmetic)),
        ("memory", memory),
    ]
    if machine.gpus is None:
        missing = "unknown: torch is not installed (pip install 'thumbwheel[train]')"
        return [*lines, ("GPU", missing)]
    shown = [f"{gpu.name} ({gpu.kind}), {_size(gpu.memory_gb)}" for gpu in machine.gpus]
    return lines + [("GPU", line) for line in shown or ["none"]]


def _yes_or_no(flag: bool | None) -> str:
    if flag is None:
        return "unknown"
    return "yes" if flag else "no"


def _size(gigabytes: float | None) -> str:
    return "unknown" if gigabytes is None else size(1e9 * gigabytes)


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items()) or "the defaults"
