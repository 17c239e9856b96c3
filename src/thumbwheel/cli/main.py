"""The `thumbwheel` command line. A stage's `commands.py` is imported only when one of its commands
is typed.

To add a command: write it in the stage's `commands.py` and list it in COMMANDS. A command is a
function or a Typer group; its `ctx.obj` is the opener of the home.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from thumbwheel import __version__
from thumbwheel.core import ids, log

COMMANDS = {
    "plan": (
        "thumbwheel.training.dataset_commands:plan",
        "What a file of feedback would teach; nothing is stored.",
    ),
    "import": ("thumbwheel.capture.commands:import_", "Bring traces and feedback in from a file."),
    "feedback": ("thumbwheel.capture.commands:feedback", "Add, list and count feedback."),
    "case": (
        "thumbwheel.capture.commands:case",
        "Gold cases: inputs that you reviewed, with what makes an answer right.",
    ),
    "reward": (
        "thumbwheel.rewards.commands:reward",
        "What recorded answers were worth: judge, list, explain, weigh.",
    ),
    "label": (
        "thumbwheel.rewards.label_commands:label",
        "Suggest labels, review them, and how far raters and judges agree.",
    ),
    "dataset": (
        "thumbwheel.training.dataset_commands:dataset",
        "Plan, build, show and export training data.",
    ),
    "hardware": (
        "thumbwheel.training.commands:hardware",
        "What this machine has, and the preset that suits it.",
    ),
    "train": (
        "thumbwheel.loop.cycle_commands:train",
        "Train a LoRA adapter or a reward model, by any method.",
    ),
    "loop": (
        "thumbwheel.loop.cycle_commands:loop",
        "Turn the wheel once: from the feedback to a version that answers.",
    ),
    "evaluate": (
        "thumbwheel.evaluation.commands:evaluate",
        "Compare a version with what runs today on held-out rows, and gate it.",
    ),
    "gate": (
        "thumbwheel.evaluation.gate_commands:gate",
        "What a candidate must show: declared once for each agent.",
    ),
    "reward-model": (
        "thumbwheel.training.reward_commands:reward_model",
        "Reward models: list, show, and score answers.",
    ),
    "models": ("thumbwheel.loop.commands:models", "List versions, show one, follow its lineage."),
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
        "What is deployed, whether it answers, and which alias points at it.",
    ),
    "promote": (
        "thumbwheel.deploy.commands:promote",
        "Point an alias at a version that is deployed and passed its canary.",
    ),
    "rollback": (
        "thumbwheel.deploy.commands:rollback",
        "Point an alias back at the version before, in one step.",
    ),
    "modelfile": (
        "thumbwheel.deploy.modelfile_commands:modelfile",
        "Write the Modelfile of a version, for Ollama.",
    ),
    "undeploy": ("thumbwheel.deploy.commands:undeploy", "Take a version off its targets."),
    "serve": (
        "thumbwheel.deploy.commands:serve",
        "The front door of an agent: OpenAI's API, the model is the agent's name.",
    ),
    "report": (
        "thumbwheel.loop.commands:report",
        "The model change report of a version: one HTML file and JSON.",
    ),
    "erase": (
        "thumbwheel.loop.erase_commands:erase",
        "Take a subject out of the home for good, and mark what learned from it.",
    ),
    "tools": (
        "thumbwheel.llm.commands:tools",
        "The programs of llama.cpp that GGUF needs: what is here, and getting them.",
    ),
    "settings": (
        "thumbwheel.compat.commands:settings",
        "Turn the settings of a replaced system into ours.",
    ),
    "sandbox": (
        "thumbwheel.sandbox.commands:sandbox",
        "Whether code of answers may run on this machine: levels and attacks.",
    ),
    "demo": ("thumbwheel.demo.commands:demo", "One turn of the wheel on an embedded model."),
}

WITHIN = {
    "dataset": {"why": "thumbwheel.loop.erase_commands:why"},
    "feedback": {"used-in": "thumbwheel.loop.erase_commands:used_in"},
}
"""Commands of a group that are implemented in a higher stage than the group."""

HELP = {"import": "thumbwheel.capture.commands:import_help"}
"""Commands whose help also names what plugins bring."""

ENDLESS = frozenset({"serve"})
"""Commands that run until they are stopped, and so have no progress to report."""

INTRO = """Turn the feedback that people give your LLM app into a better model, on your own machine.

Start with `thumbwheel plan FILE`: it says what your feedback could teach, in a minute, storing
nothing. Then: import -> dataset build -> train -> evaluate -> export -> deploy -> report.
`thumbwheel demo` does it all on an embedded model.
"""


UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
"""The error that typer raises for an invalid command line; it exports only a subclass of it."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of a disk wherever something is written, standard output included."""


@contextmanager
def _visible_usage_errors() -> Iterator[None]:
    """Escape control characters in typer's own error messages, which quote what was typed."""
    try:
        yield
    except UsageError as error:
        error.message = log.visible(error.message)
        raise


class Group(TyperGroup):
    """The top of the command line. On Ctrl-C it says what becomes of the work."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the global options."""
        with _visible_usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            with _visible_usage_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            log.complain(
                "interrupted: what was stored until here stays, and the same command may be given "
                "again"
            )
            raise typer.Exit(130) from None


def main() -> None:
    """Run the command line; a ThumbwheelError becomes a message and an exit code."""
    from thumbwheel.core.errors import StorageError, ThumbwheelError
    from thumbwheel.core.files import unwritable
    from thumbwheel.core.private import close_to_others

    # Threads that spin while they wait make every step several times slower as soon as another
    # program wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, _terminated)
    close_to_others()
    try:
        command = get_command(build(sys.argv[1:]))
        _take_any_agent_name(command)
        command(prog_name="thumbwheel")
    except ThumbwheelError as error:
        log.complain(f"error: {error}")
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in DISK:
            raise
        log.complain(f"error: {unwritable(error.filename or 'the output', error)}")
        # Not sys.exit: the interpreter would try to write buffered output again, and fail.
        os._exit(StorageError.exit_code)
    except KeyboardInterrupt:
        log.complain("interrupted")
        sys.exit(130)


def _terminated(*_: Any) -> None:
    """Treat SIGTERM like Ctrl-C. Programs such as `timeout` send it twice, and the second signal is
    ignored."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise KeyboardInterrupt


def _take_any_agent_name(command: Any) -> None:
    """Let every command take any spelling of an agent's name, and log the slug that it becomes."""
    for subcommand in getattr(command, "commands", {}).values():
        _take_any_agent_name(subcommand)
    for parameter in command.params:
        if parameter.name == "agent":
            parameter.callback = _agent_slug


def _agent_slug(ctx: Any, parameter: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    slug = ids.slug_of(value)
    if slug != value:
        log.say(f"agent {value!r} is {slug!r} here")
    return slug


def build(arguments: list[str]) -> typer.Typer:
    """The application for these arguments: the typed command, and the others as one line of help
    each."""
    app = typer.Typer(
        name="thumbwheel",
        help=INTRO,
        cls=Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    typed = COMMANDS.keys() & set(arguments)
    for name, (location, line) in COMMANDS.items():
        command = _load(location) if name in typed else None
        if command is not None:
            _extend(command, WITHIN.get(name, {}))
        _attach(app, name, command, line)
    return app


def _extend(group: typer.Typer, commands: dict[str, str]) -> None:
    if not commands:
        return
    existing = {command.name for command in group.registered_commands}
    for name in commands.keys() - existing:
        group.command(name)(_load(commands[name]))


def _version(requested: bool) -> None:
    if requested:
        log.write(f"thumbwheel {__version__}\n")
        raise typer.Exit


def root(
    ctx: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option(
            help="The home folder (default: THUMBWHEEL_HOME, else the per-user data directory)."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings in YAML (default: ./thumbwheel.yaml where it exists)."),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_version
        ),
    ] = False,
) -> None:
    """Global options, before the command."""
    if ctx.invoked_subcommand:
        from thumbwheel.app.open import opener
        from thumbwheel.core import log

        ctx.obj = opener(home, config, log_level)
        if ctx.invoked_subcommand not in ENDLESS:
            ctx.with_resource(log.working(ctx.invoked_subcommand))


def _load(location: str) -> Any:
    module, _, attribute = location.partition(":")
    return getattr(import_module(module), attribute)


def _attach(app: typer.Typer, name: str, command: Any, line: str) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, help=line, no_args_is_help=True)
    else:
        text: str | None = line
        if command is not None:
            text = _load(HELP[name])() if name in HELP else None  # None: the docstring
        app.command(name, help=text)(command or _stub)


def _stub() -> None:
    """A placeholder in the list of commands for one that was not typed."""
