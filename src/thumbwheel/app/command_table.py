"""Every command of `thumbwheel`, with the place of its code. A stage's `commands.py` is imported
only when one of its commands is needed.

To add a command: write it in the stage's `commands.py` and list it in COMMANDS, and give it a route
in the stage's `routes.py`, or a reason in LOCAL why it has none. A command is a function or a Typer
group; its `ctx.obj` is the opener of the home. A plugin brings a `PluginCommand` by an entry point.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer

from thumbwheel.core import log
from thumbwheel.core.plugins import VariantTable

COMMANDS = {
    "plan": (
        "thumbwheel.training.dataset_commands:plan",
        "Tell what a file of feedback would teach; nothing is stored.",
    ),
    "import": ("thumbwheel.capture.commands:import_", "Bring traces and feedback in from a file."),
    "traces": (
        "thumbwheel.capture.trace_commands:traces",
        "List recorded traces by filters; show one with its steps and feedback.",
    ),
    "prompt": (
        "thumbwheel.capture.prompt_commands:prompt",
        "System prompts as versions: those that calls used, and those that you named.",
    ),
    "feedback": ("thumbwheel.capture.commands:feedback", "Add, list and count feedback."),
    "case": (
        "thumbwheel.capture.commands:case",
        "Gold cases: inputs that you reviewed, with what makes an answer right.",
    ),
    "reward": (
        "thumbwheel.rewards.commands:reward",
        "Judge recorded answers; list, explain and weigh their rewards.",
    ),
    "label": (
        "thumbwheel.review.label_commands:label",
        "Suggest labels, review them, and how far raters and judges agree.",
    ),
    "queue": (
        "thumbwheel.review.commands:queue",
        "Let people rate: make queues, rate, compare blind, review gold.",
    ),
    "dataset": (
        "thumbwheel.training.dataset_commands:dataset",
        "Plan, build, show and export training data.",
    ),
    "doctor": (
        "thumbwheel.app.doctor_commands:doctor",
        "Examine installation, machine and home, and say how to mend what is wrong.",
    ),
    "init": (
        "thumbwheel.app.init_commands:init",
        "Make a home and settings, and say what to do next.",
    ),
    "hardware": (
        "thumbwheel.training.commands:hardware",
        "Show this machine's hardware, and the preset that suits it.",
    ),
    "train": (
        "thumbwheel.loop.cycle_commands:train",
        "Train a LoRA adapter or a reward model, by any method.",
    ),
    "run": (
        "thumbwheel.training.run_commands:run",
        "Recorded training runs: list, compare, train one again.",
    ),
    "loop": (
        "thumbwheel.loop.cycle_commands:loop",
        "Turn the wheel once: from the feedback to a version that answers.",
    ),
    "evaluate": (
        "thumbwheel.evaluation.commands:evaluate",
        "Compare a version with what runs today on held-out rows, and gate it.",
    ),
    "replay": (
        "thumbwheel.evaluation.replay_commands:replay",
        "Let a version answer recorded traces, beside what was recorded.",
    ),
    "gate": (
        "thumbwheel.evaluation.gate_commands:gate",
        "Declare what a candidate must show, once for each agent.",
    ),
    "reward-model": (
        "thumbwheel.training.reward_commands:reward_model",
        "Reward models: list, show, and score answers.",
    ),
    "models": (
        "thumbwheel.loop.commands:models",
        "List versions, show one, follow its lineage; fetch a base, add an adapter.",
    ),
    "export": (
        "thumbwheel.export.commands:export",
        "Write a version as adapter, merged, GGUF or ONNX, compared with the trained model.",
    ),
    "deploy": (
        "thumbwheel.deploy.commands:deploy",
        "Serve a version on a target, check that it is the one, and switch.",
    ),
    "deployments": (
        "thumbwheel.deploy.commands:deployments",
        "List the deployments: whether each answers, and which alias points at it.",
    ),
    "promote": (
        "thumbwheel.deploy.commands:promote",
        "Point an alias at a version that is deployed and passed its canary.",
    ),
    "rollback": (
        "thumbwheel.deploy.commands:rollback",
        "Point an alias back at the version before, in one step.",
    ),
    "experiment": (
        "thumbwheel.loop.experiment_commands:experiment",
        "Let the people who are served decide which version is better.",
    ),
    "modelfile": (
        "thumbwheel.deploy.modelfile_commands:modelfile",
        "Write the Modelfile of a version, for Ollama.",
    ),
    "undeploy": ("thumbwheel.deploy.commands:undeploy", "Take a version off its targets."),
    "secrets": (
        "thumbwheel.deploy.secret_commands:secrets",
        "Keys of other people's servers, by name: set, list, remove.",
    ),
    "serve": (
        "thumbwheel.server.commands:serve",
        "Answer for all agents on one port, and record the calls.",
    ),
    "open": (
        "thumbwheel.server.commands:open_",
        "Log a browser in to the server of this home, and replace the home's token.",
    ),
    "keys": (
        "thumbwheel.access.commands:keys",
        "Keys by which apps and people use the server: make, list, revoke.",
    ),
    "users": (
        "thumbwheel.access.commands:users",
        "People who log in, and what they may: add, list, change, remove.",
    ),
    "audit": (
        "thumbwheel.access.commands:audit",
        "Read the audit log, and check that nothing was changed or left out.",
    ),
    "jobs": (
        "thumbwheel.app.job_commands:jobs",
        "Long work of a home that is served: list, follow, cancel, resume, try again.",
    ),
    "worker": (
        "thumbwheel.app.job_commands:worker",
        "Do the jobs of this home, until it is stopped.",
    ),
    "schedule": (
        "thumbwheel.app.job_commands:schedule",
        "Schedule jobs: list, add, pause, remove.",
    ),
    "notify": (
        "thumbwheel.notify.commands:notify",
        "Send notices by webhook, Slack and e-mail: list, test, send.",
    ),
    "report": (
        "thumbwheel.loop.commands:report",
        "Write the model change report of a version: one HTML file and JSON.",
    ),
    "erase": (
        "thumbwheel.erasure.commands:erase",
        "Take a subject out of the home for good, and mark what learned from it.",
    ),
    "db": (
        "thumbwheel.homes.commands:db",
        "Move the rows of a home between SQLite and PostgreSQL.",
    ),
    "cluster": (
        "thumbwheel.app.cluster_commands:cluster",
        "Run one home on many hosts, which share its database.",
    ),
    "blobs": (
        "thumbwheel.app.blobs_commands:blobs",
        "Move datasets, adapters and documents of a home to a bucket, and back.",
    ),
    "backup": (
        "thumbwheel.homes.commands:backup",
        "Write a home as it is now into one folder or file, while it is used.",
    ),
    "restore": (
        "thumbwheel.homes.commands:restore",
        "Make a new home of a backup, after checking every file of it.",
    ),
    "tools": (
        "thumbwheel.llm.commands:tools",
        "Show and install the programs of llama.cpp that GGUF needs.",
    ),
    "sandbox": (
        "thumbwheel.sandbox.commands:sandbox",
        "Check whether code of answers may run on this machine: levels and attacks.",
    ),
    "demo": ("thumbwheel.demo.commands:demo", "Play one turn of the wheel on an embedded model."),
}

STAGES = {
    "Begin": ("init", "doctor", "plan", "demo", "hardware"),
    "Collect": ("import", "traces", "prompt", "feedback"),
    "Rate": ("queue", "label", "case", "reward"),
    "Train": ("dataset", "train", "run", "reward-model", "models", "loop"),
    "Decide": ("evaluate", "replay", "gate", "report"),
    "Go live": (
        *("export", "modelfile", "deploy", "deployments", "promote", "rollback", "undeploy"),
        "experiment",
    ),
    "Serve": ("serve", "open", "worker", "jobs", "schedule", "notify"),
    "Look after a home": (
        *("keys", "users", "audit", "secrets", "erase", "backup", "restore", "db", "blobs"),
        "cluster",
        *("tools", "sandbox"),
    ),
}
"""The commands by stage, in the order in which `--help` shows them."""

WITHIN = {
    "dataset": {"why": "thumbwheel.report.commands:why"},
    "feedback": {"used-in": "thumbwheel.report.commands:used_in"},
    "loop": {
        name: f"thumbwheel.loop.loop_commands:{name}"
        for name in (
            "enable",
            "disable",
            "status",
            "check",
            "decisions",
            "approve",
            "refuse",
            "quarantines",
            "release",
            "discard",
        )
    },
    "reward": {"calibrate": "thumbwheel.datasets.commands:calibrate"},
}
"""Commands of a group that are implemented in a higher stage than the group."""

LOCAL = {
    "serve": "it is the server",
    "open": "whoever can open the home is its owner, and a server lets nobody in by that",
    "worker": "it is a process of the server's machine",
    "demo": "it trains in a home of its own, for whoever tries Thumbwheel out",
    "init": "it makes a home, and settings in the folder in front of you",
    "backup": "it writes into a folder of the server's machine",
    "restore": "it makes a new home",
    "cluster init": "it moves the keys while nothing else may use them",
    "cluster join": "it is about the machine in front of you",
    "cluster hosts": "whoever may see the machines of a home has a shell on one of them",
    "cluster forget": "whoever knows that a machine is gone has a shell on another",
    "blobs copy": "it moves all files while nothing else may use them",
    "db copy": "it moves all rows while nothing else may use them",
    "db retain": "the server does it by itself, as its settings say",
    "doctor": "it is about the machine in front of you",
    "hardware": "it is about the machine in front of you",
    "tools list": "it is about the machine in front of you",
    "tools install": "it installs programs",
    "models add": "it reads a folder of the machine in front of you",
    "sandbox check": "it is about the machine in front of you",
    "secrets set": "a secret is typed where it is stored, or on a page of the server",
    "label review": "it asks, at a terminal; requests are those of label questions and decide",
    "label trust": "it names a server to send texts to, and a variable that holds its key",
}
"""Commands that have no route, and why."""

HELP = {"import": "thumbwheel.capture.commands:import_help"}
"""Commands whose help also names what plugins bring."""


@dataclass(frozen=True)
class PluginCommand:
    """A command that an installed package brings. A server does not offer it."""

    command: typer.Typer | Callable[..., Any]
    """A Typer group, or the function of a single command."""
    line: str
    """Its line in the list of commands."""
    stage: str
    """The group of that list in which it is shown, one of STAGES."""


PLUGINS: VariantTable[PluginCommand] = VariantTable("command", "thumbwheel.commands", {})


def add_commands(app: typer.Typer, names: Collection[str]) -> None:
    """Add the commands with these names to `app` in full, and all others as one line of help
    each."""
    for name, (location, line) in COMMANDS.items():
        command = load(location) if name in names else None
        if command is not None:
            _extend(command, WITHIN.get(name, {}))
        _attach(app, name, command, line)


def plugin_commands(arguments: Sequence[str] | None = None) -> dict[str, PluginCommand]:
    """Return the commands of plugins by name. There are none if the first of the arguments is a
    command of ours, because the metadata of all installed packages has to be read for them. A
    command that cannot be loaded is left out with a warning."""
    if arguments and arguments[0] in COMMANDS:
        return {}
    commands: dict[str, PluginCommand] = {}
    for name in PLUGINS.names():
        if name in COMMANDS:
            continue
        try:
            commands[name] = PLUGINS.get(name)
        except Exception as error:  # noqa: BLE001 - a broken package must not end other commands
            log.complain(f"the command {name!r} of {PLUGINS.locations[name]} is left out: {error}")
    return commands


def add_plugin_commands(app: typer.Typer, commands: dict[str, PluginCommand]) -> None:
    """Add the commands of plugins to `app`."""
    for name, plugin in commands.items():
        _attach(app, name, plugin.command, plugin.line)


def _extend(group: typer.Typer, commands: dict[str, str]) -> None:
    if not commands:
        return
    existing = {command.name for command in group.registered_commands}
    for name, location in commands.items():
        if name not in existing:
            group.command(name)(load(location))


def load(location: str) -> Any:
    """Return the object at `module:attribute`."""
    module, _, attribute = location.partition(":")
    return getattr(import_module(module), attribute)


def parameter_name(parameter: Any) -> str:
    """Return a typer parameter's name in requests: the name of its option, with underscores.

    >>> from types import SimpleNamespace as Option
    >>> parameter_name(Option(param_type_name="option", opts=["-a", "--agent-type"], name="agent"))
    'agent_type'
    """
    if parameter.param_type_name == "argument":
        return str(parameter.name)
    long = next(text for text in parameter.opts if text.startswith("--"))
    return str(long.removeprefix("--").replace("-", "_"))


def is_json_flag(parameter: Any) -> bool:
    """Return whether the parameter is the flag that prints the result as JSON."""
    return "--json" in parameter.opts and bool(getattr(parameter, "is_flag", False))


def leaves(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, command) for each command without subcommands, such as "models list"."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield path, command
        return
    for name, subcommand in subcommands.items():
        yield from leaves(subcommand, f"{path} {name}".strip())


def _attach(app: typer.Typer, name: str, command: Any, line: str) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, help=line, no_args_is_help=True)
    else:
        text: str | None = line
        if command is not None:
            text = load(HELP[name])() if name in HELP else None  # None: the docstring
        app.command(name, help=text)(command or _stub)


def _stub() -> None:
    """Stand in for a command that was not typed, in the list of commands."""
