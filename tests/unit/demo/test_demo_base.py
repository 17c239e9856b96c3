from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from thumbwheel.demo import base
from thumbwheel.demo.base import BaseConfig, ensure_base, fingerprint
from thumbwheel.demo.filer import Filer
from thumbwheel.demo.person import Person
from thumbwheel.demo.world import common_filing, draw_mails, messages


def test_the_fingerprint_changes_with_every_setting(tiny: BaseConfig) -> None:
    assert fingerprint(BaseConfig()) == fingerprint(BaseConfig())
    assert (
        len({fingerprint(config) for config in (BaseConfig(), replace(BaseConfig(), seed=8), tiny)})
        == 3
    )


def test_a_cached_base_is_not_trained_again(
    tiny: BaseConfig, tiny_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "train_base", lambda *_: pytest.fail("trained again"))
    assert (ensure_base(tiny_cache, tiny) / "model.safetensors").is_file()


def test_a_training_that_dies_leaves_nothing(tiny: BaseConfig, tmp_path: Path) -> None:
    def interrupt(step: int, steps: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_base(tmp_path, tiny, interrupt)
    assert list(tmp_path.iterdir()) == []


def test_training_is_reproducible(tiny: BaseConfig, tmp_path: Path, tiny_cache: Path) -> None:
    seen: list[tuple[int, int]] = []
    again = ensure_base(tmp_path, tiny, lambda step, steps, loss: seen.append((step, steps)))
    first = ensure_base(tiny_cache, tiny)
    assert (again / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    assert seen == [(i, 10) for i in range(1, 11)]


def test_tokenizer_and_shape(tiny: BaseConfig, tiny_cache: Path, tmp_path: Path) -> None:
    filer = Filer(ensure_base(tiny_cache, tiny))
    chat = messages(next(draw_mails(random.Random(0), "any")))
    text = base.prompt_text(filer.tokenizer, chat)
    assert text.startswith("<|im_start|>system\n") and text.endswith("<|im_start|>assistant\n")
    ids = filer.tokenizer(text)["input_ids"]
    assert (
        filer.tokenizer.decode(ids) == text
        and ids.count(filer.end) == 2
        and filer.tokenizer.eos_token == base.END
    )
    fresh_tokenizer = base.make_tokenizer(tiny, [chat])
    fresh_tokenizer.save_pretrained(tmp_path)
    config = base.make_model(tiny, fresh_tokenizer).config
    config.save_pretrained(tmp_path)  # with it, AutoTokenizer picks the class by model type
    assert (
        AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
        == fresh_tokenizer(text)["input_ids"]
    )
    odd = "naïve ☃ \t\n{}"
    assert filer.tokenizer.decode(filer.tokenizer(odd)["input_ids"]) == odd
    assert filer.model.config.model_type == "qwen2" and filer.model.config.tie_word_embeddings


@pytest.mark.slow
def test_sampling_follows_the_seed_and_the_order_of_chats(
    tiny: BaseConfig, tiny_cache: Path
) -> None:
    filer = Filer(ensure_base(tiny_cache, tiny))
    chats = [messages(mail) for mail in islice(draw_mails(random.Random(0), "any"), 20)]
    first = filer.answer(chats, 1.0, 3)
    assert first == filer.answer(chats, 1.0, 3) != filer.answer(chats, 1.0, 4)
    greedy = filer.answer(chats, 0.0, 3)
    assert greedy[::-1] == filer.answer(chats[::-1], 0.0, 5)


def test_greedy_answers_equal_those_of_transformers(tiny: BaseConfig, tiny_cache: Path) -> None:
    filer = Filer(ensure_base(tiny_cache, tiny))
    for chat in (messages(mail) for mail in islice(draw_mails(random.Random(2), "any"), 3)):
        ids = filer.tokenizer(base.prompt_text(filer.tokenizer, chat), return_tensors="pt")
        out = filer.model.generate(**ids, do_sample=False, max_new_tokens=base.MAX_ANSWER)[
            0, ids["input_ids"].shape[1] :
        ]
        text = filer.tokenizer.decode(out).split(base.END)[0]
        assert filer.answer([chat], 0.0, 0)[0].text == text


@pytest.mark.slow
def test_the_base_knows_the_common_rules_and_no_private_habit(real_base: Path) -> None:
    filer = Filer(real_base)
    for seed in (1, 2, 5, 11, 123):
        person = Person(seed)
        mails = person.mails(random.Random(f"check:{seed}"), 600, "fresh")
        answers = [
            answer.text for answer in filer.answer([messages(mail) for mail in mails], 0.0, 0)
        ]
        right = [
            text == person.filing(mail).text() for text, mail in zip(answers, mails, strict=True)
        ]
        common = [
            text == common_filing(mail).text()
            for text, mail in zip(answers, mails, strict=True)
            if person.habit_of(mail) is None
        ]
        assert all(set(json.loads(text)) == {"folder", "priority"} for text in answers)
        assert 0.55 <= sum(right) / len(right) <= 0.65
        assert sum(common) / len(common) >= 0.95
