"""What is served is what was trained and judged: the same prompts, tokens and log-probabilities."""

from __future__ import annotations

import threading

import pytest

from tests.models.tiny_models import tiny_adapter, tiny_base
from tests.waiting import until
from thumbwheel.core.errors import DataError, ModelError, NotFound
from thumbwheel.deploy.streaming_generator import StreamingGenerator, _VisibleText
from thumbwheel.engine.load import load_adapter, load_base
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler

PROMPT = [{"role": "user", "content": "Größe, 東京?"}]


@pytest.fixture(scope="module")
def generator(tiny_model, adapters):
    streaming = StreamingGenerator(str(tiny_model), "float32")
    streaming.load("base", None)
    streaming.load("a.one", adapters[0])
    streaming.load("two", adapters[1])
    return streaming


def say(generator, name, **settings):
    sampling = Sampling(
        **{"max_new_tokens": 12, "temperature": 0, "stop_ids": generator.builder.stop_ids}
        | settings
    )
    return list(generator.generate(name, generator.builder.prompt(PROMPT), sampling, top_count=2))


@pytest.mark.parametrize(("name", "index"), [("a.one", 0), ("two", 1), ("base", None)])
@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 1.0, "seed": 5}, {"temperature": 1.0, "top_p": 0.8, "top_k": 20}],
)
def test_tokens_and_log_probabilities_are_those_of_the_sampler(
    generator, tiny_model, adapters, name, index, settings
):
    model, tokenizer = load_base(str(tiny_model), "float32")
    model = model if index is None else load_adapter(model, adapters[index])
    sampling = Sampling(
        **{"max_new_tokens": 12, "temperature": 0.0, "stop_ids": generator.builder.stop_ids}
        | settings
    )
    [[expected]] = GroupSampler(model, tokenizer).sample(
        [generator.builder.prompt(PROMPT)], 1, sampling
    )
    pieces = say(generator, name, **settings)
    assert tuple(piece.id for piece in pieces) == expected.ids
    assert "".join(piece.text for piece in pieces) == expected.text
    assert pieces[-1].finish == expected.finish and {piece.finish for piece in pieces[:-1]} <= {
        None
    }
    if expected.logps is not None:
        assert [piece.logp for piece in pieces] == pytest.approx(expected.logps, abs=1e-5)
    assert all(piece.top[0][1] >= piece.top[1][1] for piece in pieces)


def test_a_stop_text_is_never_shown(generator):
    whole = "".join(piece.text for piece in say(generator, "a.one"))
    stop = whole[3:6]
    pieces = say(generator, "a.one", stop=(stop,))
    assert "".join(piece.text for piece in pieces) == whole[: whole.index(stop)]
    assert pieces[-1].finish == "stop"


def test_an_answer_shorter_than_the_stop_text_shows_none_of_it():
    shown = _VisibleText(Sampling(max_new_tokens=20, stop=("\n\nObservation:",)))
    assert "".join(shown.new("Yes\n\nObserv"[:end], False) for end in range(1, 12)) == ""
    assert shown.new("Yes", True) == "Yes"


def test_the_base_answers_after_the_last_adapter_has_gone(tiny_model, adapters):
    alone = StreamingGenerator(str(tiny_model), "float32")
    alone.load("base", None)
    before = [piece.id for piece in say(alone, "base")]
    for _ in range(2):
        alone.load("one", adapters[0])
        assert [piece.id for piece in say(alone, "one")] != before
        alone.unload("one")
        assert [piece.id for piece in say(alone, "base")] == before


def test_models_come_and_go(generator, tiny_model, adapters):
    before = [piece.id for piece in say(generator, "two")]
    generator.load("three", adapters[0])
    assert (
        [piece.id for piece in say(generator, "three")]
        == [piece.id for piece in say(generator, "a.one")]
        != before
    )
    generator.unload("three")
    generator.unload("three")
    with pytest.raises(NotFound, match=r"Known: base, a\.one, two"):
        say(generator, "three")
    assert [piece.id for piece in say(generator, "two")] == before


def test_an_adapter_of_another_base_is_refused_and_the_others_stay(generator, tmp_path):
    before = [piece.id for piece in say(generator, "two")]
    foreign = tiny_adapter(tiny_base(tmp_path / "wide", hidden_size=64), tmp_path / "foreign")
    with pytest.raises(ModelError, match="Serve it over the base that it was trained on"):
        generator.load("foreign", foreign)
    assert "foreign" not in generator.names
    assert [piece.id for piece in say(generator, "two")] == before


def test_a_prompt_without_room_is_an_error_before_anything_is_computed(generator):
    with pytest.raises(DataError, match="context 256"):
        generator.generate("two", [5] * 256, Sampling(max_new_tokens=1))
    with pytest.raises(DataError, match="0 tokens"):
        generator.generate("two", [], Sampling(max_new_tokens=1))


def test_a_reader_that_leaves_ends_the_work(generator, monkeypatch):
    computed, has_left, pieces_of = [], threading.Event(), generator._pieces

    def held(*arguments):
        for piece in pieces_of(*arguments):
            computed.append(piece)
            yield piece
            has_left.wait(60)

    with monkeypatch.context() as patch:
        patch.setattr(generator, "_pieces", held)
        pieces = generator.generate(
            "two", generator.builder.prompt(PROMPT), Sampling(max_new_tokens=200, temperature=1.0)
        )
        next(pieces)
        pieces.close()
        has_left.set()
        until(lambda: not generator._busy.locked())
    assert len(computed) == 2  # the token that was under way when the reader left
    assert len(say(generator, "two", max_new_tokens=1)) == 1
