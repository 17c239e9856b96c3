"""The `tools` commands: which programs of llama.cpp are here, and getting them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from thumbwheel.llm.tools import Tool

tools = typer.Typer()
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@tools.command("list")
def list_(json: Json = False) -> None:
    """What is found, where, and what is missing with the command that helps.

    Searched: the folder of THUMBWHEEL_LLAMA_CPP, the PATH, our build, our downloads.

    Example: thumbwheel tools list
    """
    from thumbwheel.llm.tools import FILES, find

    _show({name: find(name) for name in FILES}, json)


@tools.command()
def install(
    build: Annotated[
        bool,
        typer.Option(
            "--build",
            help="Also build llama-server and llama-quantize (cmake and a compiler; minutes).",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Download the converter and the prebuilt library (88 MB) into your user cache; with --build
    compile the programs.

    Nothing outside that cache is touched, and the system's packages are left alone.

    Example: thumbwheel tools install --build
    """
    from thumbwheel.llm.install import install as run
    from thumbwheel.llm.tools import FILES

    found = {tool.name: tool for tool in run(build)}
    _show({name: found.get(name) for name in FILES}, json)


def _show(found: dict[str, Tool | None], json: bool) -> None:
    from thumbwheel.core import log
    from thumbwheel.llm.tools import FOR, fix

    if json:
        log.answer(
            {
                name: tool and {"path": tool.path, "origin": tool.origin, "version": tool.version}
                for name, tool in found.items()
            }
        )
        return
    rows: Iterable[tuple[Any, ...]] = (
        (
            name,
            FOR[name],
            tool.origin if tool else "missing",
            f"{tool.path} ({tool.version})" if tool else fix(name),
        )
        for name, tool in found.items()
    )
    log.table("llama.cpp", ("tool", "what it does", "from", "where"), rows)
