"""The worlds in which learning is measured: proving seeds meet nothing that a tuning seed has seen,
and people err as often as said."""

from __future__ import annotations

import importlib
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.models.tiny_models import tiny_base
from tests.public_data import public_data

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    public_data("intents/banking77-train.jsonl")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("worlds")


@pytest.fixture
def written(worlds: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`written(name, seed, ratings)`: the files of a world whose app is right about every third
    message."""
    world_module = importlib.import_module("worlds.world")

    def exchanges(base: Path, examples: list[Any], seed: int, max_new_tokens: int) -> list[Any]:
        answers = [
            example.answer if number % 3 == 0 else examples[number - 1].answer
            for number, example in enumerate(examples)
        ]
        occurred_at = datetime(2026, 1, 1, tzinfo=UTC)
        return [
            world_module.Exchange(f"t-{number}", "s-1", "u-1", occurred_at, example, text, "stop")
            for number, (example, text) in enumerate(zip(examples, answers, strict=True))
        ]

    monkeypatch.setattr(importlib.import_module("worlds.rated"), "sampled_exchanges", exchanges)
    return lambda name, seed, ratings: worlds.WORLDS[name].write(
        tmp_path / f"{name}-{seed}-{ratings}", seed, ratings, Path("base")
    )


def test_seeds_that_prove_are_no_seeds_that_tune(worlds: ModuleType) -> None:
    for world in worlds.WORLDS.values():
        assert not set(world.tune) & set(world.prove), world.name
        assert world.prove, world.name


def test_proving_seeds_draw_from_messages_that_no_tuning_seed_meets(written: Any) -> None:
    def texts(seed: int, ratings: int) -> tuple[set[str], set[str]]:
        files = written("desk", seed, ratings)
        return {example.group for example in files.taught}, {
            example.group for example in files.gold_examples
        }

    tuned, tuned_gold = texts(1, 1500)
    proved, proved_gold = texts(4, 2500)
    assert (len(tuned), len(proved)) == (1500, 2500)
    assert not (tuned | tuned_gold) & (proved | proved_gold)
    assert not tuned & tuned_gold
    assert not proved & proved_gold
    assert len(proved_gold) > 1000


def test_fewer_ratings_are_the_first_ones_and_the_gold_stays(written: Any) -> None:
    few, many = written("desk", 4, 50), written("desk", 4, 250)
    assert few.taught == many.taught[:50]
    assert few.gold_examples == many.gold_examples


@pytest.mark.parametrize(("name", "corrected"), [("desk", 0.093), ("router", 92 / 1500)])
def test_clerks_err_about_as_often_as_said_and_correct_only_what_is_wrong(
    written: Any, worlds: ModuleType, name: str, corrected: float
) -> None:
    read_lines = importlib.import_module("worlds.world").read_lines
    ratings = worlds.WORLDS[name].prove_ratings
    files = written(name, 4, ratings)
    answers = {line["id"]: line["output"] for line in read_lines(files.traces)}
    truth = dict(zip(answers, [example.answer for example in files.taught], strict=True))
    feedback = read_lines(files.feedback)
    thumbs = [line for line in feedback if line["kind"] == "thumb"]
    wrong_thumbs = sum(
        line["value"] != (answers[line["target"]["trace"]] == truth[line["target"]["trace"]])
        for line in thumbs
    )
    corrections = [line for line in feedback if line["kind"] == "correction"]
    assert 0.08 < wrong_thumbs / len(thumbs) < 0.12
    assert len(corrections) == round(corrected * ratings)
    assert all(
        line["value"] == truth[line["target"]["trace"]] != answers[line["target"]["trace"]]
        for line in corrections
    )


def test_stars_follow_how_near_an_answer_is_and_what_no_intent_covers_is_declined(
    worlds: ModuleType,
) -> None:
    assistant = importlib.import_module("worlds.assistant")
    data = importlib.import_module("worlds.data")
    exchange_of = importlib.import_module("worlds.world").Exchange
    world = worlds.WORLDS["assistant"]
    asked = world.example_of(data.Message("what is my balance", "balance"))
    near = '{"domain":"banking","intent":"transfer"}'
    verdicts = [
        assistant.verdict(
            exchange_of("t", "s", "u", datetime(2026, 1, 1, tzinfo=UTC), asked, text, "stop")
        )
        for text in (asked.answer, near, assistant.DECLINED, "no json")
    ]
    assert verdicts == ["right", "near", "wrong", "wrong"]
    assert world.answer_of(data.Message("who made you, really", "oos")) == assistant.DECLINED
    assert random.Random(1).choice(assistant.STARS["right"]) >= 4


def test_all_pairs_of_a_prompt_are_either_rated_or_gold_and_disagreement_is_kept(
    worlds: ModuleType, tmp_path: Path
) -> None:
    public_data("preferences/pandalm-testset-v1-3annotators.jsonl")
    read_lines = importlib.import_module("worlds.world").read_lines
    world = worlds.WORLDS["choice"]
    files = world.write(tmp_path, 1, world.prove_ratings, Path("base"))
    traces, feedback = read_lines(files.traces), read_lines(files.feedback)
    rated_prompts = {"\n".join(message["content"] for message in line["input"]) for line in traces}
    assert len(traces) == 2 * len({line["session"] for line in traces}) <= 2 * world.prove_ratings
    assert len(files.gold_pairs) >= 450
    assert not rated_prompts & {pair.group for pair in files.gold_pairs}
    verdicts: dict[str, set[int | None]] = {}
    for line in feedback:
        verdicts.setdefault(line["targets"][0]["trace"], set()).add(line["value"])
    assert any(len(values) > 1 for values in verdicts.values())
    assert any(None in values for values in verdicts.values())
    sides = [line["value"] for line in feedback if line["rater"]["id"] == "crowd"]
    assert 0.4 < sum(sides) / len(sides) < 0.6


def test_sums_are_right_and_no_question_is_asked_twice(worlds: ModuleType) -> None:
    sums = importlib.import_module("worlds.sums")
    questions = sums.questions()
    texts = [example.group for example in questions]
    assert len(set(texts)) == len(texts) > sums.TAUGHT + sums.Sums.prove_ratings + sums.GOLD
    for example in questions[:200]:
        first, second, *_ = (
            int(word.strip(":,.")) for word in example.group.split() if word.strip(":,.").isdigit()
        )
        assert int(example.answer) in {first + second, first - second, second - first}


def test_a_pair_counts_for_what_most_people_said(worlds: ModuleType) -> None:
    comparison = importlib.import_module("worlds.choice").Comparison
    prompt = [{"role": "user", "content": "Name a fruit."}]

    def preferred(*verdicts: int | None) -> str | None:
        pair = comparison(
            prompt,
            ("first", "second"),
            {str(rater): verdict for rater, verdict in enumerate(verdicts)},
        ).pair()
        return pair.chosen if pair else None

    assert [preferred(0), preferred(1, 1, 0), preferred(0, 0, None)] == ["first", "second", "first"]
    assert [preferred(None), preferred(0, 1, None), preferred(None, None, 1)] == [None, None, None]


def test_preferences_are_judged_as_transformers_scores_each_text_alone(
    worlds: ModuleType, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    judges = importlib.import_module("worlds.judges")
    base = tiny_base(tmp_path, initializer_range=0.1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    texts = [
        "Yes.",
        "No, because of the long way that it takes.",
        "Perhaps",
        "Never again, I said.",
    ]
    rows = [
        judges.token_row(tokenizer, [{"role": "user", "content": "Shall we go?"}], text)
        for text in texts
    ]
    policy = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    alone = []
    for prompt, answer in rows:
        ids = torch.tensor([[*prompt, *answer]])
        labels = torch.tensor([[-100] * len(prompt) + answer])
        alone.append(-policy(input_ids=ids, labels=labels).loss.item() * len(answer))
    assert judges.log_probabilities(policy, rows).tolist() == pytest.approx(alone, abs=1e-3)
    scorer = peft_scorer(
        AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
    )
    single = [
        scorer(input_ids=torch.tensor([[*prompt, *answer]])).logits.item()
        for prompt, answer in rows
    ]
    assert judges.scores(scorer, rows).tolist() == pytest.approx(single, abs=1e-4)
    assert judges.preferred(torch.tensor([1.0, 0.5, -2.0, 3.0])) == [1.0, 0.0]


def peft_scorer(model: Any) -> Any:
    """A scorer with an adapter and a head that are not the base's."""
    import torch
    from peft import LoraConfig, get_peft_model

    model.config.pad_token_id = 0
    torch.manual_seed(1)
    return get_peft_model(
        model,
        LoraConfig(r=4, target_modules="all-linear", task_type="SEQ_CLS", init_lora_weights=False),
    ).eval()


@pytest.mark.parametrize("name", ["extract", "support"])
def test_wrong_answers_are_corrected_and_a_tenth_of_the_corrections_is_wrong(
    worlds: ModuleType, written: Any, name: str
) -> None:
    read_lines = importlib.import_module("worlds.world").read_lines
    world = worlds.WORLDS[name]
    files = written(name, world.prove[0], world.prove_ratings)
    traces = read_lines(files.traces)
    asked = {line["id"]: rated for line, rated in zip(traces, files.taught, strict=True)}
    answers = {line["id"]: line["output"] for line in traces}
    feedback = read_lines(files.feedback)
    for line in feedback:
        trace = line["target"]["trace"]
        if line["kind"] == "thumb":
            assert line["value"] == world.right(answers[trace], asked[trace])
        else:
            assert not world.right(answers[trace], asked[trace])
    corrections = [line for line in feedback if line["kind"] == "correction"]
    wrong = [
        line
        for line in corrections
        if not world.right(line["value"], asked[line["target"]["trace"]])
    ]
    bad = sum(line["kind"] == "thumb" and not line["value"] for line in feedback)
    assert 0.58 < len(corrections) / bad < 0.75
    assert 0.04 < len(wrong) / len(corrections) < 0.17


@pytest.mark.parametrize("name", ["extract", "support"])
def test_gold_cases_are_worded_as_no_rated_one_is(
    worlds: ModuleType, written: Any, name: str
) -> None:
    world = worlds.WORLDS[name]
    files = written(name, world.prove[0], world.prove_ratings)
    rated = {example.prompt[-1]["content"] for example in files.taught}
    assert not rated & {example.prompt[-1]["content"] for example in files.gold_examples}
    assert all(world.right(example.answer, example) for example in files.gold_examples)


def test_orders_of_tuning_and_proving_seeds_share_no_wording(worlds: ModuleType) -> None:
    extract = importlib.import_module("worlds.extract")
    world = worlds.WORLDS["extract"]

    def wordings(seed: int) -> set[str]:
        rated, gold = world.drawn(random.Random(seed), seed)
        used = set()
        for example in rated + gold:
            fields = json.loads(example.answer)
            text = example.prompt[-1]["content"]
            used |= {each for each in extract.WORDINGS if each.format(**fields) == text}
        return used

    tuned, proved = wordings(1), wordings(3)
    assert len(tuned) == len(proved) == 12
    assert not tuned & proved


def test_the_handbook_differs_by_seed(worlds: ModuleType, written: Any) -> None:
    first, second = (written("support", seed, 400) for seed in (3, 4))
    assert {each.answer for each in first.taught} != {each.answer for each in second.taught}
