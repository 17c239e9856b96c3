"""Sentence embeddings for the classifier of labels: the mean that they are said to be, words that
mean the same, a model that changed."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.encoders import tiny_encoder
from tests.models.tiny_models import tiny_base
from tests.worlds.label_world import AGENT, home
from thumbwheel.core.errors import ModelError
from thumbwheel.engine.embed import Embedder
from thumbwheel.models.documents import as_bytes
from thumbwheel.review.label_config import LearnConfig
from thumbwheel.review.learn import embedder_of, learn
from thumbwheel.review.suggest import suggest
from thumbwheel.rewards.classifier import Classifier
from thumbwheel.rewards.features import features
from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions.learned import Learned

HELPFUL, USELESS = (
    ("quick", "brown", "fox", "jumps", "over"),
    ("lazy", "dog", "größe", "naïve", "return"),
)


def meaning(folder):
    """An encoder to which the helpful words are one word, and the useless ones another."""
    encoder = tiny_encoder(folder)
    weights = load_file(encoder / "model.safetensors")
    words = weights["bert.embeddings.word_embeddings.weight"]
    vocabulary = json.loads((encoder / "tokenizer.json").read_text())["model"]["vocab"]
    for group in (HELPFUL, USELESS):
        words[[vocabulary[word] for word in group]] = words[vocabulary[group[0]]].clone()
    save_file(weights, encoder / "model.safetensors", {"format": "pt"})
    return encoder


def answer(word):
    """Long enough for its mean to be about the word."""
    return " ".join([word] * 6)


def rows(labels):
    """A thumb for each answer: up for helpful words."""
    lines = []
    for number, (word, good) in enumerate(labels):
        lines.append(
            {
                "type": "trace",
                "id": f"t{number}",
                "input": f"Question {number}?",
                "output": answer(word),
            }
        )
        lines.append(
            {
                "type": "feedback",
                "target": {"trace": f"t{number}"},
                "kind": "thumb",
                "value": good,
                "rater": "anna",
            }
        )
    return lines


@pytest.fixture
def seen():
    return [(word, True) for word in HELPFUL[:3] * 6] + [(word, False) for word in USELESS[:3] * 6]


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "roberta", "qwen2"])
def test_an_embedding_is_the_mean_of_the_last_hidden_states_of_length_one(tmp_path, family):
    from transformers import AutoModel, AutoTokenizer

    folder = (
        tiny_base(tmp_path / family)
        if family == "qwen2"
        else tiny_encoder(tmp_path / family, family)
    )
    embedder = Embedder(str(folder))
    text = "the quick brown fox jumps over the lazy dog"
    with torch.no_grad():
        inputs = AutoTokenizer.from_pretrained(folder)(
            [text, "the dog"], padding=family != "qwen2", return_tensors=None
        )["input_ids"]
        hidden = AutoModel.from_pretrained(folder, dtype="float32")(
            input_ids=torch.tensor([inputs[0]])
        ).last_hidden_state[0]
    mean = hidden.mean(0).numpy()
    assert embedder.embed(text) == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)
    assert embedder.embed(text).tolist() == embedder.embed(text).tolist()
    assert np.linalg.norm(embedder.embed(text * 500)) == pytest.approx(
        1, abs=1e-4
    )  # longer than the model's context
    assert embedder.about() == {"model": str(folder), "fingerprint": embedder.fingerprint}


def test_words_that_nobody_judged_are_understood_by_what_they_mean(tmp_path, seen):
    folder = str(meaning(tmp_path / "encoder"))
    fresh = [
        Case(answer("jumps")),
        Case(answer("over")),
        Case(answer("naïve")),
        Case(answer("return")),
    ]
    with home(tmp_path, rows(seen)) as ws:
        _, plain = learn(ws, AGENT, LearnConfig())
        config = LearnConfig(embeddings=folder)
        embedder = embedder_of(config)
        name, classifier = learn(ws, AGENT, config)
        assert learn(ws, AGENT, config)[0] == name
        assert suggest(ws, AGENT, 5, config).classifier == name
    chances = classifier.chances([features(case, embedder) for case in fresh])
    assert min(chances[:2]) > 0.7 > 0.45 > max(chances[2:])
    without = plain.chances([features(case) for case in fresh])
    assert min(without[:2]) < max(
        without[2:]
    )  # by words and lengths alone they cannot be told apart
    again = Classifier.of(json.loads(as_bytes(classifier.document())))
    assert again.chances([features(fresh[0], embedder)]) == pytest.approx(chances[:1])
    assert classifier.about["embeddings"] == embedder.about()


def test_learned_embeds_too_and_is_blocked_by_a_model_that_changed_or_went(
    tmp_path, seen, monkeypatch
):
    folder = meaning(tmp_path / "encoder")
    with home(tmp_path, rows(seen)) as ws:
        config = LearnConfig(embeddings=str(folder))
        _, classifier = learn(ws, AGENT, config)
    path = tmp_path / "classifier.json"
    path.write_bytes(as_bytes(classifier.document()))
    stranger = classifier.document()
    stranger["embeddings"]["model"] = "stranger/model"
    sent = tmp_path / "sent.json"
    sent.write_bytes(as_bytes(stranger))
    looked_up = []
    monkeypatch.setattr(
        "huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True
    )  # another test may have imported it before us
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: looked_up.append(host))
    (fetched,) = Learned.create({"classifier": str(sent)}).score([Case(answer("jumps"))])
    assert (fetched.status, looked_up) == (
        JudgementStatus.BLOCKED,
        [],
    )  # a file does not decide what is fetched
    good, bad = Learned.create({"classifier": str(path)}).score(
        [Case(answer("jumps")), Case(answer("return"))]
    )
    assert good.value > 0.7 > 0.45 > bad.value
    tiny_encoder(folder, seed=1)
    (changed,) = Learned.create({"classifier": str(path)}).score([Case(answer("jumps"))])
    assert (
        changed.status is JudgementStatus.BLOCKED
        and "weights have changed" in changed.evidence["reason"]
    )
    (folder / "config.json").unlink()
    assert (
        Learned.create({"classifier": str(path)}).score([Case(answer("jumps"))])[0].status
        is JudgementStatus.BLOCKED
    )
    with pytest.raises(ModelError):
        embedder_of(LearnConfig(embeddings=str(tmp_path / "nowhere")))
