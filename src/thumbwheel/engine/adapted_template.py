"""Adapts a chat template to the settings of an agent: system messages, options, the day.

The adaptation is Jinja in front of the template. It is saved with the tokenizer, so every program
that renders the saved template (transformers, vLLM, llama-server) renders as training did.
Rendering itself is render.py's; the settings are models/template_settings.py's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.models.template_settings import AS_IT_IS, TemplateSettings

Render = Callable[[str, Sequence[Mapping[str, Any]]], str]
"""(template, messages) -> text; raises DataError where the template refuses the messages."""

START = "{#- thumbwheel: settings of this chat template -#}"
END = "{{- '' }}"
"""Ends the adaptation without touching white space at the beginning of the template."""
DATE_CALL = "strftime_now"
DATE_FORMAT = re.compile(DATE_CALL + r"""\(\s*(['"])(.*?)\1""")
INDENTED_STATEMENT = re.compile(r"\A[ \t]+(?=\{[%#](?!\+))")
"""White space before a statement at the beginning of a template."""
SHORT_DATE = "%d %b %Y"
"""Format in which servers give templates `date_string`."""
SYSTEM_MARK, USER_MARK = "Qx7systemx7Q", "Qx7userx7Q"
PROBE = ({"role": "system", "content": SYSTEM_MARK}, {"role": "user", "content": USER_MARK})

# A pending system text joins the next user message. Only statements that other Jinja engines have.
MERGE = """
{%- set thumbwheel = namespace(text='', turns=[]) -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' or message['role'] == 'developer' -%}
{%- if thumbwheel.text -%}{%- set thumbwheel.text = thumbwheel.text + '\\n\\n' -%}{%- endif -%}
{%- set thumbwheel.text = thumbwheel.text + message['content'] -%}
{%- elif not thumbwheel.text -%}
{%- set thumbwheel.turns = thumbwheel.turns + [message] -%}
{%- else -%}
{%- if message['role'] == 'user' -%}
{%- set thumbwheel.text = thumbwheel.text + '\\n\\n' + message['content'] -%}
{%- endif -%}
{%- set thumbwheel.turns = thumbwheel.turns + [{'role': 'user', 'content': thumbwheel.text}] -%}
{%- if message['role'] != 'user' -%}
{%- set thumbwheel.turns = thumbwheel.turns + [message] -%}
{%- endif -%}
{%- set thumbwheel.text = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if thumbwheel.text -%}
{%- if thumbwheel.turns and thumbwheel.turns[-1]['role'] == 'user' -%}
{%- set thumbwheel.text = thumbwheel.turns[-1]['content'] + '\\n\\n' + thumbwheel.text -%}
{%- set thumbwheel.turns = thumbwheel.turns[:-1] -%}
{%- endif -%}
{%- set thumbwheel.turns = thumbwheel.turns + [{'role': 'user', 'content': thumbwheel.text}] -%}
{%- endif -%}
{%- set messages = thumbwheel.turns -%}
"""
# Instructions of developers are system texts for templates that do not know the role.
DEVELOPER = """
{%- set thumbwheel = namespace(turns=[]) -%}
{%- for message in messages -%}
{%- if message['role'] == 'developer' -%}
{%- set turn = {'role': 'system', 'content': message['content']} -%}
{%- set thumbwheel.turns = thumbwheel.turns + [turn] -%}
{%- else -%}
{%- set thumbwheel.turns = thumbwheel.turns + [message] -%}
{%- endif -%}
{%- endfor -%}
{%- set messages = thumbwheel.turns -%}
"""
# Templates of models that see pictures may go through the parts of a content, of which a text has
# none.
PARTS = """
{%- set thumbwheel = namespace(turns=[]) -%}
{%- for message in messages -%}
{%- if message['content'] is string and not message['tool_calls'] and message['role'] != 'tool' -%}
{%- set parts = [{'type': 'text', 'text': message['content']}] -%}
{%- set turn = {'role': message['role'], 'content': parts} -%}
{%- set thumbwheel.turns = thumbwheel.turns + [turn] -%}
{%- else -%}
{%- set thumbwheel.turns = thumbwheel.turns + [message] -%}
{%- endif -%}
{%- endfor -%}
{%- set messages = thumbwheel.turns -%}
"""
REFUSE = """
{%- for message in messages -%}
{%- if message['role'] == 'system' or message['role'] == 'developer' -%}
{{- raise_exception('System role not supported') -}}
{%- endif -%}
{%- endfor -%}
"""


@dataclass(frozen=True)
class AdaptedTemplate:
    """`text` is the template with the adaptation in front, or the template itself where nothing had
    to be adapted; `notes` are sentences for the user."""

    text: str
    notes: tuple[str, ...] = ()


def adapt(template: str, settings: TemplateSettings, render: Render) -> AdaptedTemplate:
    """Adapt `template` to `settings`; an earlier adaptation is replaced."""
    if settings == AS_IT_IS:
        return AdaptedTemplate(template)
    before, start, rest = template.partition(START)
    original = before + rest.partition(END)[2] if start else template
    options, notes = _options(original, settings.options)
    parts, day_notes = _day(original, settings.day)
    prefix = options + parts
    notes += day_notes
    parts, part_notes = _parts(original, prefix, render)
    notes += part_notes
    if settings.system != "template":
        # the statements that make parts are the last before the template
        system, system_notes = _system(parts + original, prefix, settings.system, render)
        prefix += system
        notes += system_notes
    return AdaptedTemplate(_joined(prefix + parts, original), tuple(notes))


def stored_template(folder: Path) -> str | None:
    """Return the chat template in a folder with tokenizer files, as an adapter has them, or None if
    it has none or several."""
    try:
        if (folder / "chat_template.jinja").is_file():
            return (folder / "chat_template.jinja").read_text(encoding="utf-8")
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    template = config.get("chat_template")
    return template if isinstance(template, str) else None


def _joined(prefix: str, template: str) -> str:
    if not prefix:
        return template
    # white space before a statement is dropped only where a line begins, which it no longer does
    return f"{START}{prefix}{END}{INDENTED_STATEMENT.sub('', template)}"


def _options(template: str, options: Mapping[str, Any]) -> tuple[str, list[str]]:
    statements, notes = "", []
    for name, value in sorted(options.items()):
        if re.search(rf"\b{re.escape(name)}\b", template):
            statements += f"{{%- set {name} = {_literal(value)} -%}}"
        else:
            notes.append(f"the chat template has no option {name!r}, which changes nothing")
    return statements, notes


def _literal(value: Any) -> str:
    """Return a JSON value as Jinja writes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        pairs = [f"{_literal(key)}: {_literal(part)}" for key, part in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _day(template: str, day: date | None) -> tuple[str, list[str]]:
    """Return template statements that define a `strftime_now` with one fixed day, and notes about
    it; no statements if the template shows no date or `day` is None."""
    if DATE_CALL not in template:
        return "", []
    if day is None:
        note = (
            "the chat template shows the date, so prompts have other tokens every day; "
            "template.day in thumbwheel.yaml pins it"
        )
        return "", [note]
    formats = dict.fromkeys(match[2] for match in DATE_FORMAT.finditer(template))
    branches = ""
    for number, date_format in enumerate(formats):
        keyword = "elif" if number else "if"
        text = day.strftime(date_format)
        branches += f"{{%- {keyword} format == {_literal(date_format)} -%}}{_shown(text)}"
    branches += f"{{%- else -%}}{_shown(day.isoformat())}{{%- endif -%}}"
    if not formats:
        branches = _shown(day.isoformat())
    statements = f"{{%- macro {DATE_CALL}(format) -%}}{branches}{{%- endmacro -%}}"
    if re.search(r"\bdate_string\b", template):
        # llama-server gives templates today's date under this name
        statements += f"{{%- set date_string = {_literal(day.strftime(SHORT_DATE))} -%}}"
    return statements, [f"the chat template shows the date: it is pinned to {day.isoformat()}"]


def _shown(text: str) -> str:
    return f"{{{{- {_literal(text)} -}}}}"


def _parts(template: str, prefix: str, render: Render) -> tuple[str, list[str]]:
    """Return the template text that makes a part of each text where the template shows no others,
    and notes about it."""
    is_shown = _is_shown(render, _joined(prefix, template), PROBE[1], USER_MARK)
    if is_shown is not False:
        return "", []
    if _is_shown(render, _joined(prefix + PARTS, template), PROBE[1], USER_MARK):
        return PARTS, ["the chat template shows parts of a content: each text is given as one"]
    return "", ["the chat template leaves out what users say: the model does not see it"]


def _is_shown(render: Render, template: str, message: Mapping[str, Any], mark: str) -> bool | None:
    """Return whether the template shows the mark of a message, with the user's question after
    instructions; None if it refuses it."""
    messages = [message] if message["role"] == "user" else [message, PROBE[1]]
    try:
        # a template may write everything in capitals
        return mark.casefold() in render(template, messages).casefold()
    except (DataError, ModelError):
        return None


def _system(template: str, prefix: str, choice: str, render: Render) -> tuple[str, list[str]]:
    """Return the template text that treats system messages where the template does not, and notes
    about it."""
    try:
        render(_joined(prefix, template), PROBE[1:])
    except (DataError, ModelError):
        return "", []  # it refuses a plain question, so nothing can be learned about it
    try:
        text = render(_joined(prefix, template), PROBE)
    except (DataError, ModelError):
        text, behaviour = "", "refuses system messages"
    else:
        behaviour = "leaves system messages out"
        # a template may write everything in capitals
        if SYSTEM_MARK.casefold() in text.casefold():
            developer = {**PROBE[0], "role": "developer"}
            knows = _is_shown(render, _joined(prefix, template), developer, SYSTEM_MARK)
            if knows:
                return "", []
            is_system = _is_shown(
                render, _joined(prefix + DEVELOPER, template), developer, SYSTEM_MARK
            )
            return DEVELOPER if is_system else "", []
    if choice == "refuse":
        note = f"the chat template {behaviour}: what has one is refused (template.system: refuse)"
        return REFUSE if text else "", [note]
    if not _shows_both(render, _joined(prefix + MERGE, template)):
        return "", [f"the chat template {behaviour}, also as a part of the user message"]
    note = (
        f"the chat template {behaviour}: their text is put before the next user message "
        "(template.system: refuse leaves such rows out)"
    )
    return MERGE, [note]


def _shows_both(render: Render, template: str) -> bool:
    try:
        text = render(template, PROBE).casefold()
    except (DataError, ModelError):
        return False
    return SYSTEM_MARK.casefold() in text and USER_MARK.casefold() in text
