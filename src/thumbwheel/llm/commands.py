"""The `tools` commands: list and install the programs of llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from thumbwheel.core import present

if TYPE_CHECKING:
    from thumbwheel.llm.tools import Tool

tools = typer.Typer()


@tools.command("list")
def list_() -> present.Answer[Any]:
    """Show which tools are installed and where, and the command that gets a missing one.

    Searched: the folder of THUMBWHEEL_LLAMA_CPP, the PATH, our build, our downloads.

    Example: thumbwheel tools list
    """
    from thumbwheel.llm.tools import FILES, find

    return _tools_answer({name: find(name) for name in FILES})


@tools.command()
def install(
    build: Annotated[
        bool,
        typer.Option(
            "--build",
            help="Also build llama-server and llama-quantize (cmake and a compiler; minutes).",
        ),
    ] = False,
) -> present.Answer[Any]:
    """Download the converter and the prebuilt library (88 MB) into your user cache; with --build
    compile the programs.

    Nothing outside that cache is touched, and the system's packages are left alone.

    Example: thumbwheel tools install --build
    """
    from thumbwheel.llm.install import install as run
    from thumbwheel.llm.tools import FILES

    installed = {tool.name: tool for tool in run(build)}
    return _tools_answer({name: installed.get(name) for name in FILES})


def _tools_answer(tools: dict[str, Tool | None]) -> present.Answer[Any]:
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
    return present.page(data, [present.Table("llama.cpp", columns, rows)])
