"""The `thumbwheel` command line: global options, errors and exit codes. The commands themselves
are listed in app/command_table.py."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from thumbwheel import sdk
from thumbwheel.app.command_table import (
    COMMANDS,
    PLUGINS,
    add_commands,
    add_plugin_commands,
    leaves,
    plugin_commands,
)
from thumbwheel.cli.help import add_help
from thumbwheel.core import ids, log
from thumbwheel.core.plugins import missing_variant
from thumbwheel.sdk.version import __version__

ENDLESS = frozenset({"serve", "worker"})
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
    """Escape control characters in typer's own error messages, which quote the typed text. The help
    of a group that was called without a command is such an error, too, and quotes nothing."""
    try:
        yield
    except UsageError as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            error.message = log.visible(error.message)
        raise


class Group(TyperGroup):
    """The top of the command line. On Ctrl-C it says what becomes of the work."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, or None. Raises NotFound if an extra brings it that is
        not installed."""
        command = super().get_command(ctx, cmd_name)
        if command is None and (error := missing_variant(PLUGINS.kind, PLUGINS.group, cmd_name)):
            raise error
        return command

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
    from thumbwheel.engine.libraries import leave_out_bitsandbytes

    leave_out_bitsandbytes()
    # Threads that spin while they wait make every step several times slower as soon as another
    # program wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, _terminated)
    close_to_others()
    try:
        command_line(sys.argv[1:])(prog_name="thumbwheel")
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


def command_line(arguments: Sequence[str] | None = None) -> Any:
    """Return the command of the whole program, with those subcommands in full that the arguments
    name; None stands for all of them."""
    command = get_command(build(arguments))
    _take_any_agent_name(command)
    show_answers(command)
    add_help(command)
    return command


def _terminated(*_: Any) -> None:
    """Treat SIGTERM like Ctrl-C. Programs such as `timeout` send it twice; the second signal is
    ignored."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise KeyboardInterrupt


def _take_any_agent_name(command: Any) -> None:
    """Make every command accept any spelling of an agent's name, and log the slug that it
    becomes."""
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


def show_answers(command: Any) -> None:
    """Make every command show its answer; with --server the command runs there."""
    for path, leaf in leaves(command):
        if _answers(leaf):
            leaf.params.append(_json_flag())
        leaf.invoke = partial(_invoke, path, leaf, leaf.invoke)


def _answers(leaf: Any) -> bool:
    """Return whether the command returns an answer, instead of running until it is stopped."""
    function = getattr(leaf.callback, "__wrapped__", leaf.callback)
    return getattr(function, "__annotations__", {}).get("return") not in (None, "None")


@cache
def _json_flag() -> Any:
    """Return the option `--json`, which every command with an answer has."""

    def flag(
        as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(flag)
    return next(option for option in get_command(app).params if option.name == "as_json")


def _invoke(path: str, leaf: Any, run_here: Callable[[Any], Any], ctx: Any) -> None:
    from thumbwheel.core import present
    from thumbwheel.jobs.request import JobRequest

    if ctx.find_root().params.get("server") is not None:
        ctx.obj.run(path, leaf.params, ctx)
        return
    if not _answers(leaf):
        run_here(ctx)
        return
    as_json = ctx.params.pop("as_json")
    answer = run_here(ctx)
    if isinstance(answer, JobRequest):
        answer = ctx.obj.performed(answer)
    if isinstance(answer, present.Lines):
        present.show_lines(answer, json=as_json)
        return
    present.show_answer(answer, json=as_json)
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


def build(arguments: Sequence[str] | None = None) -> typer.Typer:
    """Build the application for these arguments: the typed command in full, all others as one line
    of help each. None stands for all commands."""
    app = typer.Typer(
        name="thumbwheel",
        help=INTRO,
        cls=Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    names = COMMANDS.keys() if arguments is None else COMMANDS.keys() & set(arguments)
    add_commands(app, names)
    add_plugin_commands(app, plugin_commands(arguments))
    return app


def _version(requested: bool) -> None:
    if requested:
        from thumbwheel.core import present

        present.write(f"thumbwheel {__version__}\n")
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
    server: Annotated[
        str | None,
        typer.Option(help="Run the command on this server: http://HOST:8787 (thumbwheel serve)."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="The file with the key for --server (default: THUMBWHEEL_KEY)."),
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
        if server is None:
            from thumbwheel.app.open import opener

            ctx.obj = opener(home, config, log_level)
        else:
            from thumbwheel.cli.remote import RemoteCommands

            log.configure(log_level)
            ctx.obj = RemoteCommands.of_url(server, key_file, os.environ, home or sdk.home())
        if ctx.invoked_subcommand not in ENDLESS:
            ctx.with_resource(log.working(ctx.invoked_subcommand))
