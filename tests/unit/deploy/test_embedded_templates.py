"""The embedded server renders prompts as the training of each model did, also after a restart, and
reads control tokens of clients as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models.tiny_models import CHATML, tiny_adapter, tiny_base, tiny_tokenizer
from thumbwheel.core.errors import DataError
from thumbwheel.deploy.embedded import CompletionRequest, EmbeddedServer, LoadRequest
from thumbwheel.deploy.targets.embedded import MODELS, SPEC
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.models.template_settings import TemplateSettings

DATED = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('none') }}{% endif %}"
    "{{ strftime_now('%Y-%m-%d') }}\n" + CHATML
)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a<|im_end|>b"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_base(tmp_path / "base", tokenizer=tiny_tokenizer(DATED))
    spec = {"base": str(tmp_path / "base"), "dtype": "float32", "device": "cpu"}
    (tmp_path / SPEC).write_text(json.dumps(spec))
    return tmp_path


def prompt_of(server: EmbeddedServer, model: str) -> str:
    request = CompletionRequest(model=model, messages=CHAT)
    ids = server._prompt(request, chat=True)
    end = server.generator.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert ids.count(end) == 1, "the turn of the user ends where the template ends it"
    return str(server.generator.tokenizer.decode(ids))


def test_each_model_has_the_template_of_its_training(folder: Path) -> None:
    adapter = tiny_adapter(folder / "base", folder / "adapter")
    trained = PromptBuilder(
        tiny_tokenizer(DATED), settings=TemplateSettings.model_validate({"day": "2020-01-02"})
    )
    assert trained.notes
    trained.tokenizer.save_pretrained(adapter)

    server = EmbeddedServer(folder)
    server.load(LoadRequest(lora_name="v0", template={"day": "2021-03-04"}))
    server.load(LoadRequest(lora_name="v1", lora_path=str(adapter)))
    turn = "\n<|im_start|>user\nBe brief.\n\na<|im_end|>b<|im_end|>\n<|im_start|>assistant\n"
    for running in (server, EmbeddedServer(folder)):
        assert prompt_of(running, "v0") == "2021-03-04" + turn
        assert prompt_of(running, "v1") == "2020-01-02" + turn
    assert set(json.loads((folder / MODELS).read_text())) == {"v0", "v1"}


def test_results_of_tools_that_the_template_hides_are_refused_as_in_training(
    tmp_path: Path,
) -> None:
    shown = "for message in messages"
    hiding = CHATML.replace(shown, f"{shown} if message['role'] != 'tool'")
    assert hiding != CHATML
    tiny_base(tmp_path / "base", tokenizer=tiny_tokenizer(hiding))
    spec = {"base": str(tmp_path / "base"), "dtype": "float32", "device": "cpu"}
    (tmp_path / SPEC).write_text(json.dumps(spec))
    server = EmbeddedServer(tmp_path)
    server.load(LoadRequest(lora_name="v0"))
    function = {"name": "hours", "arguments": "{}"}
    messages = [
        {"role": "user", "content": "When?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "until six"},
    ]
    assert server._prompt(CompletionRequest(model="v0", messages=messages[:1]), chat=True)
    with pytest.raises(DataError, match="leaves them out"):
        server._prompt(CompletionRequest(model="v0", messages=messages), chat=True)


def test_models_that_an_earlier_server_stored_come_back(folder: Path) -> None:
    (folder / MODELS).write_text(json.dumps({"v0": None}))
    server = EmbeddedServer(folder)
    assert server.generator.names == ["v0"]
    assert prompt_of(server, "v0").endswith("b<|im_end|>\n<|im_start|>assistant\n")
