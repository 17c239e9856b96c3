"""The `tools` commands: list and install the programs of llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from thumbwheel.llm.tools import Tool

tools = typer.Typer()
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@tools.command("list")
def list_(json: Json = False) -> None:
    """Show which tools are installed and where, and the command that gets a missing one.

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

    installed = {tool.name: tool for tool in run(build)}
    _show({name: installed.get(name) for name in FILES}, json)


def _show(tools: dict[str, Tool | None], json: bool) -> None:
    from thumbwheel.core import present
    from thumbwheel.llm.tools import FOR, fix

    data: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    for name, tool in tools.items():
        if tool:
            data[name] = {"path": tool.path, "origin": tool.origin, "version": tool.version}
            rows.append((name, FOR[name], tool.origin, f"{tool.path} ({tool.version})"))
        else:
            data[name] = None
            rows.append((name, FOR[name], "missing", fix(name)))
    columns = ("tool", "what it does", "from", "where")
    present.page(data, [present.Table("llama.cpp", columns, rows)], json=json)
