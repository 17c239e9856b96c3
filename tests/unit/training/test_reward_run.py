"""A run of reward from the command to its record: registered with held-out figures, listed, shown,
asked, mounted."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.encoders import tiny_encoder
from tests.training_rows import QUICK, WORDS, row, stored
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import InputError, ModelError, NotFound
from thumbwheel.datasets.build import find
from thumbwheel.datasets.types import Dataset, PairRow
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.load import LoraSettings, attach_lora, load_base
from thumbwheel.engine.prompt import TargetText
from thumbwheel.engine.reward_model import (
    RewardInput,
    RewardModel,
    RewardModelCard,
    RewardScale,
    mount,
)
from thumbwheel.engine.score import LAST, Role, ScoreEngine
from thumbwheel.engine.tree import Branch, Example, build
from thumbwheel.models import reward_models
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import Agent, RewardModelRecord
from thumbwheel.models.versions import ensure_agent, versions
from thumbwheel.training.reward_model_record import held_out, of_answers, of_numbers
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import runs, train

PROMPT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "the quick brown fox"},
]
ANSWERS = ["the lazy dog", "fox", "add return def"]
READS = [RewardInput(PROMPT, text) for text in ANSWERS]


@pytest.fixture(scope="module")
def reward_ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with Workspace.open(Home(tmp_path_factory.mktemp("home")), Sources({}, "", {})) as opened:
        yield opened


@pytest.fixture(scope="module")
def first(reward_ws: Workspace, tiny_model: Path) -> RewardModelRecord:
    """The only run over a decoder; every test reads it."""
    return trained(reward_ws, "pairs", tiny_model)


def dataset(ws: Workspace, shape: str) -> Dataset:
    """24 rows in train, 8 in dev, 10 in gate."""
    from datetime import UTC, datetime

    from thumbwheel.core import ids

    ensure_agent(ws, "a")
    rows = [row(shape, n, "train" if n < 24 else "dev" if n < 32 else "gate") for n in range(42)]
    manifest = {"counts": {"train": 24, "dev": 8, "gate": 10}}
    frozen = Dataset(
        ids.derived("dst", "a", shape),
        "a",
        shape,
        ids.fingerprint(shape),
        manifest,
        datetime.now(UTC),
    )
    return stored(ws, frozen, rows)


def trained(ws: Workspace, shape: str, base: Path, **options: Any) -> RewardModelRecord:
    result = train(
        ws,
        Agent.named("a"),
        "reward",
        find_base(str(base), ws.home.cache),
        dataset=dataset(ws, shape),
        options=QUICK | options,
    )
    assert result.version is None and result.reward_model
    return reward_models.find(ws, "a", result.reward_model)


@pytest.mark.slow
def test_a_run_gives_a_reward_model_and_no_version(
    reward_ws: Workspace, first: RewardModelRecord, tmp_path: Path
) -> None:
    from tests.opened_home import invoked
    from thumbwheel.training.reward_commands import reward_model

    assert (
        first.name == "rm1"
        and versions(reward_ws, Agent.named("a")) == []
        and first.run_id == runs(reward_ws, Agent.named("a"))[0].id
    )
    held = first.metrics["held_out"]
    assert (
        held["n"] == 8
        and 0
        <= held["exact_low"]
        <= held["low"]
        <= held["accuracy"]
        <= held["high"]
        <= held["exact_high"]
        <= 1
    )
    assert {"loss", "accuracy", "margin", "ece"} <= first.metrics["dev"].keys()

    def ask(*arguments):
        return invoked(reward_ws, reward_model, *arguments, "--agent", "a")

    assert (
        json.loads(ask("list", "--json").stdout)[0]["name"]
        == json.loads(ask("show", "1", "--json").stdout)["name"]
        == "rm1"
    )
    assert "bradley_terry" in ask("list").stdout and "of 8 right" in ask("show", "rm1").stdout
    (tmp_path / "pairs.jsonl").write_text(
        '{"prompt": "question", "chosen": "fox", "rejected": "dog"}\n'
    )
    output = json.loads(
        ask("score", "rm1", "--file", str(tmp_path / "pairs.jsonl"), "--json").stdout
    )
    assert [(line["line"], line["answer"]) for line in output] == [(1, "fox"), (1, "dog")]
    alone = json.loads(
        ask("score", "rm1", "--prompt", "question", "--answer", "fox", "--json").stdout
    )
    assert alone[0]["score"] == pytest.approx(output[0]["score"], abs=1e-5)
    assert (
        "longer than"
        in ask("score", "rm1", "--prompt", "question", "--answer", "fox " * 300).stdout
    )
    for wrong in (["score", "rm1"], ["score", "rm1", "--file", str(tmp_path / "none.jsonl")]):
        with pytest.raises(InputError):
            ask(*wrong)
    with pytest.raises(NotFound, match="Known: rm1"):
        ask("show", "rm9")


@pytest.mark.slow
def test_the_gate_split_stays_closed_while_a_reward_model_is_made(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Whoever trains against the reward model would have seen, through it, the rows that judge the
    result."""
    opened: list[str] = []
    original = Artifacts.path

    def watched(blobs: Artifacts, sha256: str) -> Path:
        opened.append(sha256)
        return original(blobs, sha256)

    with (
        pytest.MonkeyPatch.context() as patch,
        Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as home,
    ):
        patch.setattr(Artifacts, "path", watched)
        record = trained(home, "pairs", tiny_model, max_steps=1)
        files = find(home, "a").manifest["files"]
        spec = RunDir(home.home.runs / record.run_id).spec()
    assert spec.files == {"train": files["train"], "dev": files["dev"]}
    assert {files["train"], files["dev"]} <= set(opened)
    assert files["gate"] not in opened


def test_what_an_answer_earns_is_a_chance_where_classes_were_learned(
    reward_ws: Workspace, first: RewardModelRecord
) -> None:
    model = RewardModel.load(reward_models.folder(reward_ws, first), device="cpu")
    scores = model.score(READS)
    assert model.training_rewards([READS]) == [scores]  # from pairs only the order means something
    model.card = replace(model.card, loss_type="classification")
    assert model.training_rewards([READS])[0] == pytest.approx(
        [1 / (1 + math.exp(-logit)) for logit in scores], abs=1e-5
    )
    assert math.isnan(model.training_rewards([[RewardInput(PROMPT, "fox " * 300)]])[0][0])


def long_pair(number: int) -> PairRow:
    """A dialogue that fits with the short answer and loses older turns with the long one."""
    chance = random.Random(f"long pair {number}")
    words = lambda count: " ".join(chance.choice(WORDS) for _ in range(count))  # noqa: E731
    turns = [
        {"role": role, "content": words(3)} for _ in range(2) for role in ("user", "assistant")
    ]
    prompt = [*turns, {"role": "user", "content": words(3)}]
    return replace(row("pairs", number, "gate"), prompt=prompt, chosen=words(2), rejected=words(60))


def test_both_answers_of_a_pair_are_read_after_the_same_turns(
    reward_ws: Workspace, first: RewardModelRecord
) -> None:
    """As in training. Each after as many turns as it leaves room for, other answers would be called
    the better ones."""
    model = RewardModel.load(reward_models.folder(reward_ws, first), device="cpu")

    def sides(pair):
        return [RewardInput(pair.prompt, pair.chosen), RewardInput(pair.prompt, pair.rejected)]

    def dropped(pair, *texts):
        return model._builder.fit(
            pair.prompt, list(map(TargetText, texts)), model.card.max_length
        ).dropped_turns

    pairs = [
        pair
        for pair in map(long_pair, range(60))
        if dropped(pair, pair.chosen) < dropped(pair, pair.chosen, pair.rejected)
    ]
    assert len(pairs) > 20
    alone = [model.score(sides(pair)) for pair in pairs]
    common = model.score_together([sides(pair) for pair in pairs])
    for pair, scores in zip(pairs, common, strict=True):
        rest = pair.prompt[2 * dropped(pair, pair.chosen, pair.rejected) :]
        assert model.score([RewardInput(rest, pair.chosen)]) == pytest.approx(scores[:1], abs=1e-5)
    ranked_right = [chosen > rejected for chosen, rejected in common]
    assert ranked_right != [chosen > rejected for chosen, rejected in alone]
    assert held_out(model, pairs)["accuracy"] == pytest.approx(sum(ranked_right) / len(pairs))


def test_an_answer_that_is_too_long_does_not_silence_the_others(
    reward_ws: Workspace, first: RewardModelRecord
) -> None:
    model = RewardModel.load(reward_models.folder(reward_ws, first), device="cpu")
    ((short, longest),) = model.score_together(
        [[RewardInput(PROMPT, "fox"), RewardInput(PROMPT, "fox " * 300)]]
    )
    assert [short] == pytest.approx(
        model.score([RewardInput(PROMPT, "fox")]), abs=1e-5
    ) and math.isnan(longest)


def test_held_out_labels_are_compared_with_the_commoner_one(
    reward_ws: Workspace, first: RewardModelRecord
) -> None:
    model = RewardModel.load(reward_models.folder(reward_ws, first), device="cpu")
    model.card = replace(model.card, loss_type="classification")
    gate_rows = [replace(row("labels", n, "gate"), label=n < 7) for n in range(10)]
    figures = held_out(model, gate_rows)
    right = [
        (score > 0) == gate_row.label
        for score, gate_row in zip(
            model.score(
                [RewardInput(gate_row.prompt, gate_row.completion) for gate_row in gate_rows]
            ),
            gate_rows,
            strict=True,
        )
    ]
    assert (figures["n"], figures["accuracy"], figures["majority"]) == (
        10,
        pytest.approx(sum(right) / 10),
        0.7,
    )
    assert held_out(model, []) == {"n": 0, "unreadable": 0}


def test_an_answer_is_read_as_in_training(reward_ws: Workspace, first: RewardModelRecord) -> None:
    """One that was cut off has no end, tools stand in the prompt, and little memory only means more
    passes."""
    model = RewardModel.load(reward_models.folder(reward_ws, first), device="cpu")
    seen: list[Any] = []
    whole = model._engine.score

    def score(batch: Any, *rest: Any) -> Any:
        if batch.n_branches > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        seen.append(batch.input_ids.tolist())
        return whole(batch, *rest)

    model._engine.score = score  # type: ignore[method-assign]
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
    model._builder.tokenizer.chat_template = (
        "{{ tools | tojson if tools }}" + model._builder.tokenizer.chat_template
    )
    ended, cut, equipped = sorted(
        model.score(
            [
                RewardInput(PROMPT, "fox", "stop"),
                RewardInput(PROMPT, "fox", "length"),
                RewardInput(PROMPT, "fox", None, tools),
            ]
        )
    )
    assert len({ended, cut, equipped}) == 3
    short, plain, long = sorted({tuple(token_ids) for token_ids in seen}, key=len)
    assert plain[: len(short)] == short and plain[len(short) :] == model._builder.turn_end_ids
    assert long[-len(plain) :] == plain or len(long) > len(plain) + 10


def test_no_place_beside_an_adapter_of_another_kind(
    reward_ws: Workspace, first: RewardModelRecord, tiny_model: Path
) -> None:
    from peft import LNTuningConfig, get_peft_model

    model, _ = load_base(str(tiny_model))
    engine = ScoreEngine(get_peft_model(model, LNTuningConfig(target_modules=["norm"])))
    assert mount(engine, reward_models.folder(reward_ws, first), "judge") is None


def test_the_result_is_the_standard_form(
    reward_ws: Workspace, first: RewardModelRecord, tiny_model: Path
) -> None:
    """PEFT and transformers alone give the same scores, on padded rows."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = reward_models.folder(reward_ws, first)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inner = AutoModelForSequenceClassification.from_pretrained(
        tiny_model, num_labels=1, dtype=torch.float32, pad_token_id=tokenizer.pad_token_id
    )
    plain = PeftModel.from_pretrained(inner, folder).eval()

    def rendered(text):
        return tokenizer.apply_chat_template(
            [*PROMPT, {"role": "assistant", "content": text}], tokenize=False
        )

    texts = [rendered(text).rstrip("\n") for text in ANSWERS]
    with torch.no_grad():
        expected = (
            plain(**tokenizer(texts, return_tensors="pt", padding=True, padding_side="right"))
            .logits[:, 0]
            .tolist()
        )
    assert RewardModel.load(folder, device="cpu").score(READS) == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_an_encoder_judges_behind_the_same_interface(reward_ws: Workspace, tmp_path: Path) -> None:
    base = tiny_encoder(tmp_path / "encoder", "deberta-v2")
    record = trained(reward_ws, "scored", base, loss_type="regression", max_steps=2)
    folder = reward_models.folder(reward_ws, record)
    card, model = RewardModelCard.read(folder), RewardModel.load(folder, device="cpu")
    assert card.scale == model.scale and 1 <= card.scale.low < card.scale.high <= 5
    assert record.metrics["held_out"]["n"] == 8 and record.metrics["held_out"]["mae"] < 4
    together = model.score(READS)
    assert together == pytest.approx([model.score([read])[0] for read in READS], abs=1e-5)
    assert len(set(together)) == 3
    assert mount(writer(tmp_path), folder, "judge") is None


def writer(tmp_path: Path, base: Path | None = None) -> ScoreEngine:
    from tests.models.tiny_models import tiny_base

    model, _ = load_base(str(base or tiny_base(tmp_path / "other", seed=9)), "float32")
    return ScoreEngine(attach_lora(model, LoraSettings(rank=2), seed=0)[0])


def test_mounted_on_the_policys_base_it_gives_the_same_scores(
    reward_ws: Workspace, first: RewardModelRecord, tiny_model: Path, tmp_path: Path
) -> None:
    folder = reward_models.folder(reward_ws, first)
    alone = RewardModel.load(folder, device="cpu")
    token_rows = [alone._builder.fit(PROMPT, [TargetText(text)], 128).rows[0] for text in ANSWERS]
    examples = [
        Example(tokens.prompt_ids, (Branch(tokens.completion_ids),), "g") for tokens in token_rows
    ]
    engine = writer(tmp_path, tiny_model)
    batch = build(examples, range(3), engine.layout)
    before, trainable = (
        engine.score(batch, Role.POLICY).logp,
        [parameter.requires_grad for parameter in engine.model.parameters()],
    )
    voice = mount(engine, folder, "judge")
    assert voice is not None
    engine.add(Role.REWARD, voice)
    assert engine.score(batch, Role.REWARD, LAST).last.tolist() == pytest.approx(
        alone.score(READS), abs=1e-5
    )
    assert torch.equal(engine.score(batch, Role.POLICY).logp, before)
    assert sum(parameter.requires_grad for parameter in engine.model.parameters()) == sum(trainable)
    assert not any(tokens.requires_grad for tokens in engine.parameters_of(Role.REWARD))
    assert mount(writer(tmp_path), folder, "judge") is None
    plain_model, _ = load_base(str(tiny_model), "float32")
    assert mount(ScoreEngine(plain_model), folder, "judge") is None


def test_a_base_that_changed_is_refused(
    reward_ws: Workspace, first: RewardModelRecord, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(reward_models.folder(reward_ws, first), tmp_path / "copy"))
    replace(RewardModelCard.read(folder), base_fingerprint="of something else").write(folder)
    with pytest.raises(ModelError, match="different weights"):
        RewardModel.load(folder, device="cpu")
    (folder / "reward.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        RewardModel.load(folder, device="cpu")


def test_figures_of_held_out_rows() -> None:
    figures = of_answers(
        [True] * 81 + [False] * 182, 263, [str(number) for number in range(263)]
    )  # Newcombe 1998, table I
    assert (figures["low"], figures["high"]) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert (figures["exact_low"], figures["exact_high"]) == pytest.approx(
        (0.2527, 0.3676), abs=1e-4
    )
    assert (
        of_answers([], 3, [])
        == {"n": 0, "unreadable": 3}
        == of_numbers(RewardScale(0, 1), [], [], 3)
    )
    five = of_answers([True] * 150 + [False] * 50, 200, [str(number // 5) for number in range(200)])
    assert (
        five["groups"] == 40
        and five["low"] < 0.65 < 0.75 < 0.85 < five["high"]
        and "exact_low" not in five
    )
    numbers = of_numbers(RewardScale(1, 5), [-1.0, 0.0, 1.0], [1.0, 4.0, 5.0], 4)
    assert numbers == pytest.approx(
        {"n": 3, "unreadable": 1, "mse": 1 / 3, "mae": 1 / 3, "mse_of_mean": 26 / 9}
    )


def test_the_ledger_judges_by_a_reward_model_under_its_name(
    reward_ws: Workspace, first: RewardModelRecord, tmp_path: Path
) -> None:
    from thumbwheel.capture.ingest import ingest
    from thumbwheel.rewards import ledger
    from thumbwheel.rewards.combine import RewardConfig
    from thumbwheel.rewards.component import components
    from thumbwheel.rewards.presets import ComponentConfig

    lines = [
        {"type": "trace", "id": answer, "input": PROMPT, "output": answer} for answer in ANSWERS
    ]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert ingest(reward_ws, "a", "jsonl", tmp_path / "traces.jsonl").refused == 0
    config = RewardConfig(
        preset="none", components={"reward_model": ComponentConfig(settings={"model": "rm1"})}
    )
    parts = components(reward_ws, "a", config)
    assert ledger.run(reward_ws, Agent.named("a"), parts).statuses == {
        ("reward_model", "ok"): len(ANSWERS)
    }
    with reward_ws.db.read() as connection:
        signals = sorted(
            reward.value or 0
            for reward in ledger.rewards(connection, Agent.named("a"), config, parts)
        )
    outputs = RewardModel.load(reward_models.folder(reward_ws, first), device="cpu").score(READS)
    assert signals == pytest.approx(
        sorted(1 / (1 + math.exp(-output)) for output in outputs), abs=1e-5
    )
    assert (
        ledger.run(reward_ws, Agent.named("a"), components(reward_ws, "a", config)).judged.total()
        == 0
    ), "the same model in the same folder is the same version"
