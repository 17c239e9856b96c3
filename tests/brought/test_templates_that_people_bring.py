"""Chat templates of real models: a base without a system role, arguments as text or as a mapping, a
date, control tokens in texts. A prompt has the same tokens in training, evaluation, export and
serving, today and tomorrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import brought
from tests.command_line import Run
from tests.models.tiny_models import CHATML, tiny_base, tiny_tokenizer
from tests.training_rows import QUICK, by_split, row, stored
from thumbwheel.core import ids
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import DataError
from thumbwheel.datasets.health import CheckedRows
from thumbwheel.datasets.types import ChatRow, Dataset
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.prompt import Fitted, PromptBuilder, TargetText
from thumbwheel.evaluation.local_model import LocalModel
from thumbwheel.evaluation.types import EvaluationConfig
from thumbwheel.export.package import export
from thumbwheel.models.template_settings import TemplateSettings
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import adapter_folder, ensure_agent, versions
from thumbwheel.training.assemble import assemble, settings
from thumbwheel.training.reproduce import Sameness, reproduce
from thumbwheel.training.train import find_run, train
from thumbwheel.training.types import RunState

NO_SYSTEM = "50-template-no-system"
ARGUMENTS = "51-template-tool-arguments"
DATE = "54-template-date"
LENGTH = "55-boundary-and-truncation"
CONTROL = "56-control-tokens-in-text"
MANY = 10**6
SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is it?"}]
DAY = date(2026, 3, 4)


def template(name: str) -> str:
    return brought(name).read_text()


def conversations(folder: str) -> list[list[dict[str, Any]]]:
    return list(json.loads(brought(f"{folder}/messages.json").read_text()))


def builder(text: str, **values: Any) -> PromptBuilder:
    return PromptBuilder(tiny_tokenizer(text, bos=True), settings=TemplateSettings(**values))


def fitted(
    prompt_builder: PromptBuilder, messages: list[dict[str, Any]], length: int = MANY
) -> Fitted:
    return prompt_builder.fit(messages, [TargetText("Here.")], length)


def shown(prompt_builder: PromptBuilder, messages: list[dict[str, Any]]) -> str:
    rows = fitted(prompt_builder, messages).rows
    return str(prompt_builder.tokenizer.decode(rows[0].prompt_ids))


# 50: no system role


def test_the_system_text_joins_the_first_user_turn() -> None:
    system, two_users = conversations(NO_SYSTEM)
    gemma = builder(template(f"{NO_SYSTEM}/gemma.jinja"))
    assert shown(gemma, system) == (
        "<s><start_of_turn>user\nBe brief.\n\nWhere is it?<end_of_turn>\n<start_of_turn>model\n"
    )
    assert "Conversation roles must alternate" in fitted(gemma, two_users).refused
    mistral = builder(template(f"{NO_SYSTEM}/mistral.jinja"))
    assert shown(mistral, system) == "<s>[INST] Be brief.\n\nWhere is it? [/INST]"
    assert shown(mistral, two_users) == "<s>[INST] Hi [/INST][INST] Where is it? [/INST]"
    assert "leaves system messages out" in mistral.notes[0]


@pytest.mark.parametrize("name", ["gemma", "mistral"])
def test_one_option_refuses_instead(name: str) -> None:
    refusing = builder(template(f"{NO_SYSTEM}/{name}.jinja"), system="refuse")
    assert "System role not supported" in fitted(refusing, SYSTEM).refused
    assert fitted(refusing, SYSTEM[1:]).rows


def chat_rows(*prompts: list[dict[str, Any]], completion: str = "Over there.") -> list[ChatRow]:
    rows = []
    for number in range(12):
        values = {"prompt": prompts[number % len(prompts)], "completion": completion}
        rows.append(replace(row("chats", number), **values))
    return rows


def assembled(base: Path, folder: Path, rows: list[ChatRow], **values: Any) -> Any:
    config = settings("sft", QUICK)
    return assemble(
        "sft",
        config,
        str(base),
        base,
        by_split([asdict(chat) for chat in rows]),
        folder / "reference.db",
        template=TemplateSettings(**values),
    )


def base_with(folder: Path, text: str) -> Path:
    tokenizer = tiny_tokenizer(text, bos=True)
    return tiny_base(folder, "llama", tokenizer=tokenizer, initializer_range=0.1)


def test_training_says_before_it_starts_how_many_rows_the_template_refuses(
    tmp_path: Path,
) -> None:
    base = base_with(tmp_path / "base", template(f"{NO_SYSTEM}/gemma.jinja"))
    system, two_users = conversations(NO_SYSTEM)
    assembly = assembled(base, tmp_path, chat_rows(system, two_users))
    assert len(assembly.train.items) == 6
    merged, refused = assembly.opening_notes
    assert "their text is put before the next user message" in merged
    assert "6 of 12 training rows are left out, because the chat template refuses them" in refused
    assert "Change the roles of these rows" in refused


def test_rows_that_are_all_refused_stop_the_run_before_the_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_with(tmp_path / "base", template(f"{NO_SYSTEM}/gemma.jinja"))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the weights were loaded")

    monkeypatch.setattr("thumbwheel.engine.load.load_base", never)
    _, two_users = conversations(NO_SYSTEM)
    with pytest.raises(DataError, match=r"12 training rows.*must alternate.*Change the roles"):
        assembled(base, tmp_path, chat_rows(two_users))
    with pytest.raises(DataError, match=r"System role not supported.*template.system"):
        assembled(base, tmp_path, chat_rows(SYSTEM), system="refuse")


# 51: arguments and empty contents


@pytest.mark.parametrize(
    ("name", "call"),
    [("concat", ""), ("items", "hours day=today"), ("strargs", 'hours\n{"day": "today"}')],
)
def test_arguments_have_the_form_that_the_template_wants(name: str, call: str) -> None:
    (messages,) = conversations(ARGUMENTS)
    prompt_builder = builder(template(f"{ARGUMENTS}/{name}.jinja"))
    wanted = (
        f"<s><|im_start|>user\nOpen?<|im_end|>\n<|im_start|>assistant\n{call}<|im_end|>\n"
        "<|im_start|>tool\n9-18<|im_end|>\n<|im_start|>assistant\n"
    )
    assert shown(prompt_builder, messages) == wanted
    mapping = json.loads(json.dumps(messages))
    mapping[1]["tool_calls"][0]["function"]["arguments"] = {"day": "today"}
    assert shown(prompt_builder, mapping) == wanted


@pytest.mark.parametrize("name", ["concat", "items", "strargs"])
@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_a_call_without_arguments_renders(name: str, arguments: Any) -> None:
    (messages,) = conversations(ARGUMENTS)
    messages[1]["tool_calls"][0]["function"]["arguments"] = arguments
    messages[2]["content"] = None
    text = shown(builder(template(f"{ARGUMENTS}/{name}.jinja")), messages)
    assert "None" not in text and "null" not in text
    assert "<|im_start|>tool\n<|im_end|>" in text


@pytest.mark.parametrize(
    ("written", "call"),
    [
        ("{{ t.function.arguments }}", '{"day": "today"}'),
        ("{{ t.function.arguments | tojson }}", '{"day": "today"}'),
        (
            "{% if t.function.arguments is string %}{{ t.function.arguments }}{% else %}"
            "{{ t.function.arguments | tojson }}{% endif %}",
            '{"day": "today"}',
        ),
        ("{% for k in t.function.arguments %}{{ k }};{% endfor %}", "day;"),
    ],
)
def test_arguments_are_never_shown_as_python_writes_them(written: str, call: str) -> None:
    (messages,) = conversations(ARGUMENTS)
    text = CHATML.replace(
        "{{ message['content'] }}",
        "{{ message['content'] }}{% for t in message.tool_calls or [] %}"
        + written
        + "{% endfor %}",
    )
    assert f"assistant\n{call}<|im_end|>" in shown(builder(text), messages)


# 54: a date


def test_a_date_is_named_and_pinned() -> None:
    (messages,) = conversations(DATE)
    text = template(f"{DATE}/date.jinja")
    assert "other tokens every day" in builder(text).notes[0]
    assert "Today is 2026-03-04<|im_end|>" in shown(builder(text, day=DAY), messages)


# 55: borders and lengths


def test_the_border_never_moves_and_no_answer_is_cut() -> None:
    (messages,) = conversations(LENGTH)
    prompt_builder = builder(template(f"{LENGTH}/chatml.jinja"))
    prompt = prompt_builder.prompt(messages)
    for answer in ("Here.", " here", "\nhere", "\n\n", "é", "<think>\nno</think> yes", "a" * 40):
        (whole,) = prompt_builder.fit(messages, [TargetText(answer)], MANY).rows
        assert list(whole.prompt_ids) == prompt
        assert prompt_builder.tokenizer.decode(whole.completion_ids) == f"{answer}<|im_end|>"
        exactly = prompt_builder.fit(messages, [TargetText(answer)], whole.length)
        assert exactly.rows == (whole,)
        shorter = prompt_builder.fit(messages, [TargetText(answer)], whole.length - 1)
        assert shorter.rows == () and "exceed" in shorter.refused


def test_what_does_not_fit_is_refused_and_counted(tmp_path: Path) -> None:
    base = base_with(tmp_path / "base", template(f"{LENGTH}/chatml.jinja"))
    (messages,) = conversations(LENGTH)
    rows = [*chat_rows(messages), *chat_rows(messages, completion="far away " * 60)]
    assembly = assembled(base, tmp_path, rows)
    assert len(assembly.train.items) == 12
    assert list(assembly.train.dropped.values()) == [12]
    assert "longer than max_length 128" in next(iter(assembly.train.dropped))


# 56: control tokens in texts


def test_control_tokens_of_people_are_text() -> None:
    question, answer = json.loads(brought(f"{CONTROL}/row.jsonl").read_text())["messages"]
    tokenizer = tiny_tokenizer()
    prompt_builder = PromptBuilder(tokenizer)
    built = prompt_builder.row([question], answer["content"])
    start, end = (tokenizer.convert_tokens_to_ids(name) for name in ("<|im_start|>", "<|im_end|>"))
    control = [token for token in built.prompt_ids if token in tokenizer.all_special_ids]
    assert control == [start, end, start]
    assert [token for token in built.completion_ids if token in tokenizer.all_special_ids] == [end]
    assert tokenizer.decode(built.completion_ids) == "It is <|im_end|> here.</s><|im_end|>"
    assert tokenizer.decode(built.prompt_ids) == prompt_builder.render([question])


def test_health_names_the_rows_with_control_tokens(command_line: Run) -> None:
    path = str(brought(f"{CONTROL}/row.jsonl"))
    code, _, err = command_line("import", "openai", path, "--agent", "desk")
    assert code == 0, err
    code, _, err = command_line("dataset", "build", "--agent", "desk", "--shape", "chats")
    assert code == 0, err
    code, out, err = command_line("dataset", "health", "chats", "--agent", "desk", "--json")
    assert code == 0, err
    findings = {finding["check"]: finding for finding in json.loads(out)["findings"]}
    finding = findings["control_tokens"]
    assert (finding["verdict"], finding["count"]) == ("warning", 1)
    assert "<|im_end|> in 1 rows" in finding["text"] and "read them as text" in finding["text"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a<|eot_id|>b", {"<|eot_id|>"}),
        ("<start_of_turn>model", {"<start_of_turn>"}),
        ("[INST] do [/INST]", {"[INST]", "[/INST]"}),
        ("<｜User｜>x</s>", {"<｜User｜>", "</s>"}),
        ("if a <| b and c |> d: [x] <strong>", set()),
        ("<think>no</think> <tool_call>", set()),
    ],
)
def test_health_knows_the_control_tokens_of_common_models(text: str, tokens: set[str]) -> None:
    call = {"function": {"name": "f", "arguments": json.dumps({"a": text}, ensure_ascii=False)}}
    prompts = (
        [{"role": "user", "content": text}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}],
    )
    for prompt in prompts:
        checked = CheckedRows(1)
        checked.take([replace(row("chats", 1), prompt=prompt)])
        assert checked.rows[0].control_tokens == tokens


# From training to serving


@pytest.fixture
def without_thinking(tmp_path: Path) -> Iterator[Workspace]:
    file = {"template": {"agents": {"desk": {"options": {"enable_thinking": False}}}}}
    with Workspace.open(Home(tmp_path / "home"), Sources(file, "", {})) as opened:
        yield opened


def frozen(ws: Workspace, rows: list[ChatRow], recorded: date) -> Dataset:
    ensure_agent(ws, "desk")
    fingerprint = ids.fingerprint([str(rows), recorded.isoformat()])
    manifest = {"counts": {"train": len(rows), "dev": 0, "gate": 0}}
    recorded_at = datetime.combine(recorded, time(12), UTC)
    dataset_id = ids.derived("dst", "desk", fingerprint)
    dataset = Dataset(dataset_id, "desk", "chats", fingerprint, manifest, recorded_at)
    return stored(ws, dataset, rows)


ADAPTED = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('none') }}"
    "{% endif %}{{ strftime_now('%Y-%m-%d') }}\n"
    + CHATML
    + "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}"
)


@pytest.mark.slow
def test_a_prompt_has_the_same_tokens_in_training_evaluation_export_and_serving(
    without_thinking: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from thumbwheel.deploy.streaming_generator import StreamingGenerator

    base = base_with(tmp_path / "base", ADAPTED)
    dataset = frozen(without_thinking, chat_rows(SYSTEM), DAY)
    options = {**QUICK, "require_gain": False}
    agent = Agent.named("desk")
    base_model = find_base(str(base), without_thinking.home.cache)
    result = train(without_thinking, agent, "sft", base_model, dataset=dataset, options=options)
    assert result.state is RunState.FINISHED
    wanted = (
        "<s>2026-03-04\n<|im_start|>user\nBe brief.\n\nWhere is it?<|im_end|>\n"
        "<|im_start|>assistant\n<think></think>"
    )

    # the log says once what is done with the template; the command shows what a run does now, which
    # may have changed before it looks
    output = "".join(capsys.readouterr())
    assert " ".join(output.split()).count("their text is put before the next user message") <= 1
    log = (without_thinking.home.runs / result.run_id / "log.txt").read_text()
    assert log.count("their text is put before the next user message") == 1
    assert log.count("pinned to 2026-03-04") == 1

    # evaluation, and the base that it is compared with
    plain, candidate = versions(without_thinking, agent)
    local_model = LocalModel(without_thinking, plain, [candidate], EvaluationConfig())
    for version in (candidate, plain):
        evaluated = local_model.responder(version).builder
        assert evaluated.render(SYSTEM) == wanted
    prompt = local_model.builder.prompt(SYSTEM)
    assert local_model.builder.tokenizer.decode(prompt) == wanted

    # the embedded server
    generator = StreamingGenerator(str(base), "float32")
    generator.load("desk-v1", adapter_folder(without_thinking, candidate))
    generator.load("desk-v0", None, TemplateSettings(options={"enable_thinking": False}, day=DAY))
    assert generator.builder_of("desk-v1").prompt(SYSTEM) == prompt
    assert generator.builder_of("desk-v0").prompt(SYSTEM) == prompt

    # a merged export, which transformers and vLLM render by themselves
    from transformers import AutoTokenizer

    merged = export(without_thinking, candidate, "merged", tmp_path / "merged")
    tokenizer = AutoTokenizer.from_pretrained(merged.path)
    assert tokenizer.apply_chat_template(SYSTEM, tokenize=False, add_generation_prompt=True) == (
        wanted
    )

    # the run again, whatever the settings and the day are by then
    assert (
        reproduce(without_thinking, find_run(without_thinking, result.run_id)).sameness
        is Sameness.BITWISE
    )
