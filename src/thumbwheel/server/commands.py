"""`thumbwheel serve`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from thumbwheel.app.dialects import DIALECTS
from thumbwheel.core import present


def serve(
    ctx: typer.Context,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; loopback unless you know who can reach the other one."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 8787,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Take the place of the server of this home on that port, without a refused or "
            "lost request; where none runs, start as usual.",
        ),
    ] = False,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that do the jobs of this home; 0 for none.")
    ] = 1,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the pages in a browser, logged in.")
    ] = False,
    dialect: Annotated[
        list[str] | None,
        typer.Option(
            help="Understand the clients of another system too, by its own paths; repeatable. "
            f"Known: {', '.join(DIALECTS.names())} [default: those of the settings (server)]."
        ),
    ] = None,
) -> None:
    """Answer for all agents on one port, and record what is asked and answered.

    OpenAI's, Anthropic's and Ollama's APIs, where the model is the agent's name: every call goes to
    what the alias live points at in that moment, `support:canary` to another alias. Clients that
    can set nothing but a URL ask /a/AGENT/v1, by any model name.

    Example: thumbwheel serve
    """
    from thumbwheel.app.service_settings import ServerConfig
    from thumbwheel.server.serve import Workers
    from thumbwheel.server.serve import serve as run

    with ctx.obj() as ws:
        command = ctx.obj.command("worker")
        own_workers = Workers(command, workers)
        run(
            ws,
            host,
            port,
            takes_over=replace,
            workers=own_workers,
            opens_browser=open_browser,
            start_command=ctx.obj.command("deployments"),
            drain_command=ctx.obj.command(module="thumbwheel.app.drain_process"),
            dialects=dialect or ws.settings(ServerConfig, "server").dialects,
        )


def open_(
    ctx: typer.Context,
    url: Annotated[
        str | None, typer.Option(help="Where the server is [default: where one of this home runs].")
    ] = None,
    new_token: Annotated[
        bool,
        typer.Option(
            "--new-token",
            help="Replace the token of the home first: the old one, and browsers that were logged "
            "in as the home's owner, open nothing any more.",
        ),
    ] = False,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open it, or only print the URL.")
    ] = True,
) -> present.Answer[Any]:
    """Log a browser in as the home's owner: by a URL that works once, within ten minutes.

    Example: thumbwheel open
    """
    import webbrowser

    from thumbwheel.access.gate import replace_token
    from thumbwheel.access.login_codes import LoginCodes
    from thumbwheel.core import log, present
    from thumbwheel.core.errors import NotFound
    from thumbwheel.server.entrance import ENTRANCE
    from thumbwheel.server.handover import served_urls

    with ctx.obj() as ws:
        if new_token:
            replace_token(ws)
            log.say("the token of the home is another one now")
        servers = [url] if url is not None else served_urls(ws.home.path)
        if not servers:
            raise NotFound(
                "a server of this home", "none is running", "Start one: thumbwheel serve"
            )
        code = LoginCodes(ws.home.login_codes).make()
    entrance = f"{servers[0].rstrip('/')}{ENTRANCE}?code={code}"
    if browser:
        webbrowser.open(entrance)
    return present.page({"url": entrance}, [entrance])
