"""The options that choose traces, said once for all commands that have them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from typing import Annotated, Any

import typer

from thumbwheel.capture.judged import Judged
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.plugins import nearest

MOST_DIGITS = 9
"""Of the number of a version; databases hold no larger one."""
WANTED = "wanted"
"""The parameter of a command that receives the filter."""


def filters_traces(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `trace_filter`; it receives their TraceFilter as `wanted`."""
    signature = inspect.signature(command, eval_str=True)
    options = inspect.signature(trace_filter, eval_str=True).parameters

    @wraps(command)
    def run(**arguments: Any) -> Any:
        chosen = {name: arguments.pop(name) for name in options}
        return command(**arguments, **{WANTED: trace_filter(**chosen)})

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name == WANTED:
            parameters += options.values()
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__annotations__["return"] = signature.return_annotation
    return run


def trace_filter(
    *,
    session: Annotated[str | None, typer.Option(help="Only of this session.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only of this person.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Only where this model was asked for or answered.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Only what this version answered: v3.")
    ] = None,
    status: Annotated[str | None, typer.Option(help="ok, error or cancelled.")] = None,
    since: Annotated[str | None, typer.Option(help="Recorded at or after: 2026-07-05.")] = None,
    until: Annotated[str | None, typer.Option(help="Recorded before.")] = None,
    text: Annotated[
        str | None, typer.Option(help="In the answer or the last message; A is a.")
    ] = None,
    rated: Annotated[
        bool | None, typer.Option("--rated/--unrated", help="Only with, or without, feedback.")
    ] = None,
    judged: Annotated[
        Judged | None, typer.Option(help="Only where somebody said this about the answer.")
    ] = None,
) -> TraceFilter:
    """Return the filter that these options mean. Raises InputError for a version or time that is
    none."""
    return TraceFilter(
        session=session,
        subject=subject,
        model=model,
        version=None if version is None else _version_number(version),
        status=status,
        since=None if since is None else _time("--since", since),
        until=None if until is None else _time("--until", until),
        text=text,
        rated=rated,
        judged=None if judged is None else Judged(judged),  # a request brings its text
    )


def require_filters(names: Iterable[str]) -> None:
    """Raise ConfigError for a name that is no option of `trace_filter`."""
    options = list(inspect.signature(trace_filter).parameters)
    for name in names:
        if name not in options:
            fix = f"Known: {', '.join(options)}.{nearest(name, options)}"
            raise ConfigError(f"filter {name!r}", "traces have no such filter", fix)


def _version_number(version: str) -> int:
    from thumbwheel.core.errors import InputError

    number = version.removeprefix("v")
    if not number.isdecimal() or len(number) > MOST_DIGITS:
        raise InputError(
            f"--version {version[:40]!r}", "it is not a version", "Give for example v3"
        )
    return int(number)


def _time(option: str, text: str) -> datetime:
    from thumbwheel.core.errors import InputError
    from thumbwheel.importers.types import Unreadable, parse_time

    try:
        return parse_time(text)
    except Unreadable as error:
        raise InputError(f"{option} {text!r}", str(error), "Give for example 2026-07-05") from None
