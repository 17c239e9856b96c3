"""Rollouts from a real llama-server: what it says of its answers is what the same weights say in
torch, or it is refused."""

from __future__ import annotations

import pytest
import torch

from tests.servers.llama_tools import needs, wide_base
from thumbwheel.core.errors import ModelError
from thumbwheel.engine.endpoint import EndpointSource
from thumbwheel.engine.rollout import Sampling
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.types import ExportSource
from thumbwheel.llm.client import Client
from thumbwheel.llm.llama_server import LlamaServer

pytestmark = pytest.mark.slow  # a model is taught and converted
LESSONS = {"say:": "the quick brown fox jumps over the lazy dog", "draw:": "\U0001f642 \U0001f680"}


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """(model, tokenizer, GGUF): answers the first prompt in plain letters, mostly, and the second
    in characters of several tokens."""
    needs("llama-server", "converter", "library", "bindings")
    from thumbwheel.engine.load import load_base

    folder = tmp_path_factory.mktemp("rollouts")
    model, tokenizer = load_base(str(wide_base(folder / "base")), "float32")
    lessons = [
        torch.tensor(
            [
                [
                    *tokenizer(prompt)["input_ids"],
                    *tokenizer(answer)["input_ids"],
                    tokenizer.eos_token_id,
                ]
            ]
        )
        for prompt, answer in LESSONS.items()
    ]
    model.requires_grad_(True).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(40):
        for ids in lessons:
            model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(folder / "base")
    FORMATS.get("gguf").write(
        ExportSource(str(folder / "base"), None, str(folder / "base"), "F32"), folder
    )
    return model, tokenizer, next(folder.glob("*.gguf"))


@pytest.fixture
def ask(taught):
    """ask(prompts, n, sampling, ...) -> rollouts of the server, which has fewer slots than answers
    are asked for."""
    _, tokenizer, file = taught
    with LlamaServer(file, context=256, parallel=2) as server:

        def run(prompts, n, sampling, **options):
            client = Client(server.url, "taught")
            source = EndpointSource([client], tokenizer, server="llama-server", **options)
            try:
                return source.sample(
                    [tokenizer(text)["input_ids"] for text in prompts], n, sampling
                )
            finally:
                source.close()
                client.close()

        yield run


def test_log_probabilities_and_endings_are_the_models_own(taught, ask):
    model, tokenizer, _ = taught
    prompt = tokenizer("say:")["input_ids"]
    sampling = Sampling(max_new_tokens=24, stop_ids=(tokenizer.eos_token_id,), seed=3)
    (group,) = ask(["say:"], 6, sampling)
    assert len(group) == 6 and any(rollout.finish == "stop" for rollout in group)
    for rollout in group:
        with torch.no_grad():
            rows = (
                model(input_ids=torch.tensor([[*prompt, *rollout.ids]]))
                .logits[0, len(prompt) - 1 : -1]
                .log_softmax(-1)
            )
        expected = rows.gather(1, torch.tensor(rollout.ids)[:, None])[:, 0]
        assert rollout.logps == pytest.approx(expected.tolist(), abs=0.02)
        assert (rollout.finish == "stop") == (rollout.ids[-1] == tokenizer.eos_token_id)
        assert rollout.text == tokenizer.decode(rollout.ids, skip_special_tokens=True)
    (cut,) = ask(
        ["say:"],
        4,
        Sampling(max_new_tokens=24, stop_ids=(tokenizer.eos_token_id,), stop=(" fox",), seed=3),
    )
    assert {rollout.text for rollout in cut} >= {"the quick brown"}
    assert all(
        " fox" not in rollout.text and len(rollout.logps) == len(rollout.ids) for rollout in cut
    )


def test_answers_with_characters_of_several_tokens_are_whole_or_refused(taught, ask):
    _, tokenizer, _ = taught
    sampling = Sampling(max_new_tokens=24, stop_ids=(tokenizer.eos_token_id,), seed=3)
    (group,) = ask(["draw:"], 3, sampling, logprobs="none")
    assert LESSONS["draw:"] in {rollout.text for rollout in group}
    with pytest.raises(ModelError, match="parts of a character"):
        ask(["draw:"], 3, sampling)
