"""Translates the tokenizer's Jinja chat template into a Go template, for servers that render in Go.

The template is rendered on conversations of marked messages, which shows what it writes between two
turns. Where that depends on the two roles alone, a Go loop over the messages can write the same.
Both are then rendered on real conversations, and must be equal. When a server needs one is decided
in targets/ollama.py; Go templates are rendered in go_template.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from thumbwheel.core import log
from thumbwheel.core.errors import DataError, InputError, ModelError
from thumbwheel.deploy.go_template import literal, render
from thumbwheel.deploy.types import Package
from thumbwheel.engine.prompt import PromptBuilder

START, ANSWER = "", "answer"
"""The start before the first message, and the answer that the model is to write."""
ROLES = {"s": "system", "u": "user", "a": "assistant"}
SHAPES = ("u", "su", "uau", "suau", "uauau", "suauau", "ua", "sua", "uauauau")
"""Conversations by the first letters of their roles."""
TEXTS = (
    "Hello",
    "Two lines,\n\n  the second one indented; Größe, 東京, 🙂",
    '{{ .Content }} and {% if x %}{{ y }}{% endif %} with "quotes", \'single\' ones, """three""" '
    "and a \\ backslash",
)

REMEMBER = "{{ $before = .Role }}"
REFUSAL = 'if eq .Role "system" }}{{ template "this model takes no system message" . }}'
"""Go has no `raise`; calling a template that does not exist stops the rendering, and the server's
error shows the name."""

Pieces = dict[tuple[str, str], str]


@dataclass(frozen=True)
class GoTemplate:
    """`text` renders the same as the model's own template on every conversation tried; `notes` list
    what it cannot do."""

    text: str
    notes: tuple[str, ...]


def go_text(package: Package) -> str:
    """Return the chat template of a package in Go; its limitations are logged. Raises InputError if
    the package has a system text that the template cannot show."""
    from thumbwheel.engine.load import load_tokenizer

    builder = PromptBuilder(load_tokenizer(str(package.tokenizer)), settings=package.template)
    template = derive(builder)
    if package.system and any("system" in note for note in template.notes):
        raise InputError(
            f"system text of {package.name!r}",
            "the model's chat template ignores system texts",
            "Train it with a template that does",
        )
    for note in template.notes:
        log.say(f"note: the chat template of {package.name} in Go: {note}")
    return template.text


def derive(builder: PromptBuilder) -> GoTemplate:
    """Return the template of `builder` in Go. Raises ModelError if it cannot be written in Go."""
    pieces, ignored = _pieces(builder)
    text = _write(pieces, refused=not _takes(builder, "su"))
    _verify(builder, text)
    return GoTemplate(text, _notes(builder, text, ignored))


def expected(builder: PromptBuilder, messages: Sequence[Mapping[str, str]]) -> str:
    """Render the messages with the model's own template, without the BOS that a server puts before
    every text by itself."""
    tokenizer = builder.tokenizer
    text = builder.render(messages)
    if tokenizer.bos_token is None:
        return text
    adds_bos = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    return text.removeprefix(tokenizer.bos_token) if adds_bos else text


def conversation(shape: str, texts: Sequence[str] = TEXTS) -> list[dict[str, str]]:
    """Return messages of the roles in `shape` ("suau"), each with a text of its own."""
    return [
        {"role": ROLES[letter], "content": f"{texts[index % len(texts)]}{index}"}
        for index, letter in enumerate(shape)
    ]


def _cannot(why: str) -> ModelError:
    return ModelError(
        "the chat template",
        f"it cannot be written as a Go template: {why}",
        "Use Ollama 0.30 or newer, which runs it as it is",
    )


def _takes(builder: PromptBuilder, shape: str) -> bool:
    try:
        builder.render(conversation(shape))
    except DataError:
        return False
    return True


def _accepted_shapes(builder: PromptBuilder) -> list[str]:
    return [shape for shape in SHAPES if _takes(builder, shape)]


def _pieces(builder: PromptBuilder) -> tuple[Pieces, bool]:
    """Return (the text between two roles, whether the template leaves system messages out)."""
    if not _takes(builder, "u"):
        raise _cannot("it refuses a plain user message")
    pieces: Pieces = {}
    ignored = False
    for shape in _accepted_shapes(builder):
        marked = conversation(shape, ("Qx7mark",))
        text = expected(builder, marked)
        if marked[0]["role"] == "system" and marked[0]["content"] not in text:
            marked, ignored = marked[1:], True
        roles = [START, *(message["role"] for message in marked), ANSWER]
        for pair, piece in zip(pairwise(roles), _cut(text, marked), strict=True):
            if pieces.setdefault(pair, piece) != piece:
                before, after = pair
                raise _cannot(
                    f"what it writes between {before or 'the start'} and {after} depends on "
                    "more than these two"
                )
    return pieces, ignored


def _cut(text: str, marked: Sequence[Mapping[str, str]]) -> list[str]:
    pieces = []
    for message in marked:
        before, mark, text = text.partition(message["content"])
        if not mark:
            raise _cannot("it does not show every message once and in order")
        pieces.append(before)
    return [*pieces, text]


def _write(pieces: Pieces, refused: bool) -> str:
    """Write the Go template from the pieces between two roles.

    Each piece is cut into the end of one turn and the beginning of the next: the common end of all
    pieces before a user turn is the beginning of a user turn, the rest the end of the turn before.
    """
    user_start = _common_end([piece for (_, role), piece in pieces.items() if role == "user"])
    ends = {}
    for role in ROLES.values():
        if (role, "user") in pieces:
            ends[role] = pieces[role, "user"].removesuffix(user_start)
    ends["user"] = ends.get("assistant", "")
    for (before, _), piece in pieces.items():
        if not piece.startswith(ends.get(before, "")):
            ends[before] = ""
    starts = {}
    for (before, after), piece in pieces.items():
        starts[before, after] = piece.removeprefix(ends.get(before, ""))

    # One branch for each role that occurs.
    following = {after for _, after in starts}
    roles = [role for role in ROLES.values() if role in following]
    branches = [REFUSAL] if refused else []
    branches += [_turn(role, _choose(role, starts), ends[role]) for role in roles]
    loop = "{{ else ".join(branches)
    whole = "{{ range .Messages }}{{ " + loop + "{{ end }}{{ end }}" + _choose(ANSWER, starts)
    if "eq $before" in whole:
        return '{{ $before := "" }}' + whole
    return whole.replace(REMEMBER, "")


def _turn(role: str, start: str, end: str) -> str:
    return f'if eq .Role "{role}" }}}}{start}{{{{ .Content }}}}{literal(end)}{REMEMBER}'


def _choose(role: str, starts: Pieces) -> str:
    """Return the beginning of a turn of `role`, by the role before it if that matters. The most
    frequent beginning is used for all other roles."""
    options = {before: piece for (before, after), piece in starts.items() if after == role}
    if not options:
        return ""
    usual = Counter(options.values()).most_common(1)[0][0]
    special = [
        f'if eq $before "{before}" }}}}{literal(piece)}'
        for before, piece in options.items()
        if piece != usual
    ]
    if not special:
        return literal(usual)
    return "{{ " + "{{ else ".join(special) + "{{ else }}" + literal(usual) + "{{ end }}"


def _common_end(texts: Sequence[str]) -> str:
    end = texts[0]
    while not all(text.endswith(end) for text in texts):
        end = end[1:]
    return end


def _verify(builder: PromptBuilder, text: str) -> None:
    for shape in _accepted_shapes(builder):
        messages = conversation(shape)
        if render(text, messages) != expected(builder, messages):
            roles = ", ".join(message["role"] for message in messages)
            raise _cannot(f"on a conversation of {roles} the two differ")


def _notes(builder: PromptBuilder, text: str, ignored: bool) -> tuple[str, ...]:
    longest = next(shape for shape in ("suau", "uau", "u") if _takes(builder, shape))

    def follows(*texts: str) -> bool:
        messages = conversation(longest, texts)
        return render(text, messages) == expected(builder, messages)

    thinking = "<think>why</think>\n\nBecause."
    limitations = {
        "it takes no system message": not _takes(builder, "su"),
        "it leaves system messages out": ignored,
        "it trims messages, which Go cannot": not follows(" ", "\n"),
        "it rewrites earlier thinking, which Go cannot": not follows(thinking),
        "it shows tools, which are left out": builder.shows_tools,
    }
    return tuple(note for note, holds in limitations.items() if holds)
