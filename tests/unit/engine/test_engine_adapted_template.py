"""Templates adapted to settings: what is put in front of them, what stays as it is, and that a
saved template needs no settings any more."""

from __future__ import annotations

import hashlib
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import CHATML, tiny_tokenizer
from thumbwheel.core.config import build
from thumbwheel.core.errors import ConfigError, DataError
from thumbwheel.engine.adapted_template import END, START, stored_template
from thumbwheel.engine.prompt import PromptBuilder, trained_builder
from thumbwheel.models.template_settings import AS_IT_IS, TemplateConfig, TemplateSettings

REFUSES = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML
DROPS = CHATML.replace("<|im_start|>{{", "{% if message['role'] != 'system' %}<|im_start|>{{", 1)
DROPS = DROPS.replace("{% endfor %}", "{% endif %}{% endfor %}", 1)
DATED = "{{ strftime_now('%d/%m/%Y') }} {{ strftime_now(\"%A\") }}\n" + CHATML
THINKS = (
    CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
DAY = date(2024, 2, 29)
USER = {"role": "user", "content": "u"}
SYSTEM = {"role": "system", "content": "s"}
ANSWER = {"role": "assistant", "content": "a"}


def builder(template: str, **settings: Any) -> PromptBuilder:
    return PromptBuilder(tiny_tokenizer(template), settings=TemplateSettings(**settings))


def shown(*turns: str) -> str:
    """Write turns ("user u") as ChatML does, up to the answer."""
    parts = [turn.partition(" ") for turn in turns]
    texts = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, _, text in parts]
    return "".join(texts) + "<|im_start|>assistant\n"


@pytest.mark.parametrize("template", [REFUSES, DROPS])
@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([SYSTEM, USER], ["user s\n\nu"]),
        ([SYSTEM, SYSTEM, USER, ANSWER, USER], ["user s\n\ns\n\nu", "assistant a", "user u"]),
        ([USER, ANSWER, SYSTEM, USER], ["user u", "assistant a", "user s\n\nu"]),
        ([SYSTEM, ANSWER, USER], ["user s", "assistant a", "user u"]),
        ([USER, SYSTEM], ["user u\n\ns"]),
        ([SYSTEM], ["user s"]),
        ([{"role": "developer", "content": "d"}, USER], ["user d\n\nu"]),
        ([{"role": "system", "content": ""}, USER], ["user u"]),
        ([USER], ["user u"]),
    ],
)
def test_system_texts_join_the_next_user_message(
    template: str, messages: list[dict[str, Any]], turns: list[str]
) -> None:
    assert builder(template).render(messages) == shown(*turns)


def test_a_template_without_anything_to_adapt_stays_as_it_is() -> None:
    for template in (CHATML, THINKS):
        prompt_builder = builder(template, day=DAY)
        before = PromptBuilder(tiny_tokenizer(template), settings=AS_IT_IS)
        assert prompt_builder.template_hash == before.template_hash
        assert prompt_builder.tokenizer.chat_template == template and prompt_builder.notes == ()


def test_hashes_of_earlier_runs_keep_their_value() -> None:
    parts = json.dumps([CHATML, {}, "<s>", "<|im_end|>"])
    expected = hashlib.sha256(parts.encode()).hexdigest()
    assert PromptBuilder(tiny_tokenizer(bos=True)).template_hash == expected


def test_refuse_refuses_what_would_be_left_out_in_silence() -> None:
    for template in (REFUSES, DROPS):
        prompt_builder = builder(template, system="refuse")
        assert "is refused" in prompt_builder.notes[0]
        with pytest.raises(DataError, match="refuses them"):
            prompt_builder.render([SYSTEM, USER])
        assert prompt_builder.render([USER]) == shown("user u")
    assert builder(CHATML, system="refuse").render([SYSTEM, USER]) == shown("system s", "user u")


def test_a_template_is_used_as_it_is_where_the_settings_say_so() -> None:
    assert builder(DROPS, system="template").render([SYSTEM, USER]) == shown("user u")
    assert builder(DROPS, system="template").notes == ()


def test_a_template_that_drops_the_system_text_is_named() -> None:
    assert "leaves system messages out" in builder(DROPS).notes[0]
    assert "refuses system messages" in builder(REFUSES).notes[0]


def test_a_date_is_pinned_in_every_format() -> None:
    pinned = builder(DATED, day=DAY)
    assert pinned.render([USER]) == "29/02/2024 Thursday\n" + shown("user u")
    assert "pinned to 2024-02-29" in pinned.notes[0]
    assert "other tokens every day" in builder(DATED).notes[0]
    assert pinned.template_hash != builder(DATED, day=date(2024, 3, 1)).template_hash


def test_a_server_that_gives_the_date_is_given_the_pinned_one() -> None:
    template = (
        "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}"
        "{% endif %}{{ date_string }}" + CHATML
    )
    pinned = builder(template, day=DAY)
    assert pinned.render([USER]).startswith("29 Feb 2024<|im_start|>")


def test_options_of_every_kind_reach_the_template() -> None:
    values = {"a": None, "b": True, "c": 2, "d": 0.5, "e": 'x"\n\\', "f": [1, {"g": "h"}]}
    names = " ".join(f"{{{{ {name} | tojson }}}}" for name in values)
    text = builder(names, options=values).render([USER])
    assert text == 'null true 2 0.5 "x\\"\\n\\\\" [1, {"g": "h"}]'
    assert builder(THINKS, options={"enable_thinking": False}).render([USER]).endswith("</think>")
    assert "has no option 'thinking'" in builder(CHATML, options={"thinking": 1}).notes[0]


def test_white_space_at_the_beginning_of_a_template_stays() -> None:
    for start in ("\n", "  ", "\n\n  x"):
        plain = PromptBuilder(tiny_tokenizer(start + THINKS), settings=AS_IT_IS)
        adapted = builder(start + THINKS, options={"enable_thinking": True})
        assert adapted.render([USER]) == plain.render([USER])


def test_a_saved_template_is_used_as_it_was_trained(tmp_path: Path) -> None:
    trained = builder(DATED + REFUSES, day=DAY)
    wanted = trained.render([SYSTEM, USER])
    trained.tokenizer.save_pretrained(tmp_path)
    template = stored_template(tmp_path)
    assert template is not None and template.startswith(START) and END in template
    served = trained_builder(tiny_tokenizer(DATED + REFUSES), tmp_path, TemplateSettings())
    assert served.render([SYSTEM, USER]) == wanted
    assert served.notes == () and served.template_hash == trained.template_hash
    # a base that was exported here is adapted anew, not twice
    again = builder(template, day=date(2025, 1, 1))
    assert again.tokenizer.chat_template == template
    assert again.render([SYSTEM, USER]).startswith("01/01/2025")
    assert again.tokenizer.chat_template.count(START) == 1


def test_an_adapter_without_a_template_takes_that_of_the_base(tmp_path: Path) -> None:
    assert stored_template(tmp_path) is None
    served = trained_builder(tiny_tokenizer(REFUSES), tmp_path, None)
    assert served.render([SYSTEM, USER]) == shown("user s\n\nu")


def test_several_templates_of_one_tokenizer_are_adapted_each() -> None:
    tokenizer = tiny_tokenizer({"default": REFUSES, "tool_use": CHATML})  # type: ignore[arg-type]
    prompt_builder = PromptBuilder(tokenizer)
    assert prompt_builder.render([SYSTEM, USER]) == shown("user s\n\nu")
    assert prompt_builder.render([SYSTEM, USER], [{"name": "f"}]) == shown("system s", "user u")


def test_settings_of_an_agent_add_to_those_of_all() -> None:
    section = {
        "options": {"enable_thinking": False, "x": 1},
        "day": "2026-01-02",
        "agents": {"desk": {"system": "refuse", "options": {"x": 2}}},
    }
    config = build(TemplateConfig, section, "template")
    desk = config.of("desk")
    assert (desk.system, desk.options) == ("refuse", {"enable_thinking": False, "x": 2})
    assert desk.day == date(2026, 1, 2)
    assert config.of("other").system == "merge" and config.of("other").options["x"] == 1
    for name in ("messages", "not a name"):
        with pytest.raises(ConfigError, match="no option of a chat template"):
            build(TemplateConfig, {"options": {name: 1}}, "template")
