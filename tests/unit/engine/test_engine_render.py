"""Chat templates of strangers: rendered as transformers renders them, under limits of time, memory
and size."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.public_data import public_data
from thumbwheel.core import child
from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.engine import render
from thumbwheel.engine.messages import FALLBACKS
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.models.template_settings import TemplateSettings

CHAT = [
    {"role": "user", "content": "Hello {{ x }} Größe"},
    {"role": "assistant", "content": " Hi.\n"},
    {"role": "user", "content": "And?"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def rendered(template: str) -> str:
    return render.render_chat(template, CHAT, generation=True, variables=TOKENS)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**10 }}",
        "{{ '%1000000000000d' % 1 }}",
        "{{ 'a'.ljust(10**11) }}",
        "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ "
        "ns.s %}{% endfor %}{{ ns.s }}",
        "{{ [1] * 10**10 }}",
        "{{ 'a' * (2**24 + 1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_asks_for_everything_is_a_model_error(template: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        rendered(template)
    assert rendered("{{ messages[0].content }}") == CHAT[0]["content"]


def test_a_template_without_end_is_stopped_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered("{{ bos_token }}")  # the process is there
    monkeypatch.setattr(render, "SECONDS", 2.0)
    numbers = "range(100000)"
    template = (
        f"{{% for a in {numbers} %}}{{% for b in {numbers} %}}{{% for c in {numbers} %}}{{% endfor "
        f"%}}{{% endfor %}}{{% endfor %}}x"
    )
    exchanges: list[bytes] = []
    ask = child.ask

    def counted(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> dict[str, Any]:
        exchanges.append(line)
        return ask(process, line, seconds)

    monkeypatch.setattr(child, "ask", counted)
    for _ in range(2):
        with pytest.raises(ModelError, match="did not end within 2 seconds"):
            rendered(template)
    assert len(exchanges) == 1
    monkeypatch.undo()
    assert rendered("{{ eos_token }}") == "</s>"


def test_a_huge_power_does_not_hold_up_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of the interpreter that no signal interrupts."""
    rendered("{{ bos_token }}")
    monkeypatch.setattr(render, "SECONDS", 1.0)
    with pytest.raises(ModelError, match=r"did not end|memory"):
        rendered("{{ 10 ** (10 ** 10) }}")


def test_what_a_template_refuses_is_said() -> None:
    with pytest.raises(DataError, match=r"refuses them \(no system\)"):
        rendered("{{ raise_exception('no system') }}")
    with pytest.raises(DataError, match="refuses them"):
        rendered("{% if %}")
    for template in (5, None, ["a"], {"default": "x"}):
        with pytest.raises(ModelError, match="not a text"):
            render.render_chat(template, CHAT, generation=True, variables={})


def test_it_is_what_transformers_writes(bpe) -> None:  # type: ignore[no-untyped-def]
    compare(
        bpe,
        [
            *FALLBACKS.values(),
            "{{ messages | tojson }}{{ tools | tojson(indent=1) }}{{ enable_thinking }}",
        ],
    )


def test_real_templates_are_rendered_as_transformers_renders_them(bpe) -> None:  # type: ignore[no-untyped-def]
    path = public_data("ollama/chat-templates-jinja-to-name.jsonl")
    compare(bpe, [next(iter(json.loads(line).values())) for line in path.read_text().splitlines()])


def compare(bpe, templates: list[str]) -> None:  # type: ignore[no-untyped-def]
    tool = {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    calling = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    }
    for template in templates:
        for messages in (
            CHAT,
            [*CHAT[:1], calling],
            [{"role": "system", "content": "Be kind."}, *CHAT],
        ):
            for tools in (None, [tool]):
                settings = TemplateSettings(system="template", options={"enable_thinking": False})
                builder = PromptBuilder(bpe(template), settings=settings)
                try:
                    wanted = builder.tokenizer.apply_chat_template(
                        messages,
                        tools=tools,
                        add_generation_prompt=True,
                        tokenize=False,
                        enable_thinking=False,
                    )
                except Exception:
                    wanted = None
                try:
                    assert (
                        builder._apply(
                            [dict(message) for message in messages], tools, generation=True
                        )
                        == wanted
                    )
                except DataError:
                    assert wanted is None


def test_one_process_renders_all_texts() -> None:
    """To start it takes a second; a text takes a millisecond of it."""
    rendered("{{ bos_token }}")
    process = render._RENDERER._child._process
    for _ in range(200):
        rendered(FALLBACKS["plain-v1"])
    assert render._RENDERER._child._process is process
