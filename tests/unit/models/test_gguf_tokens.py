"""Texts have the tokens that llama.cpp gives them: of real vocabularies, of every pre-tokenizer, of
SentencePiece."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.models.gguf_vocabularies import sentence_pieces, with_pre_tokenizer
from tests.models.real_base import smollm2
from tests.public_data import public_data
from tests.servers.llama_tools import needs
from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import load_tokenizer
from thumbwheel.llm.library import tokenize
from thumbwheel.models.gguf import base
from thumbwheel.models.gguf.header import GgufHeader, read_header
from thumbwheel.models.gguf.pre_tokenizers import NAMES, PreTokenizer
from thumbwheel.models.gguf.tokenizer import PROBES, build_tokenizer, encoder, first_difference

GPT2 = "tokenizers/ggml-vocab-gpt-2.gguf"
SOURCES = (
    "intents/wiki-sentences.txt",
    "math/gsm8k-train.jsonl",
    "code-tasks/mbpp.jsonl",
    "intents/clinc150-test.jsonl",
    "preferences/pandalm-testset-v1-3annotators.jsonl",
    "preferences/hh-rlhf-harmless-base-test.jsonl",
)
CHAT = "<|im_start|>user\nhi <my tag> there, 1234<|im_end|>\n  <|im_start|>assistant\n"
PIECES_CHAT = "<start_of_turn>user\n  hi   there\n\n<end_of_turn>  x \n<0x41> </s>"


def lines(most: int) -> list[str]:
    """Lines of the public data, about as many of each kind."""
    files = [public_data(name) for name in SOURCES]
    sources = [file.read_text(encoding="utf-8").splitlines() for file in files]
    texts: list[str] = []
    start = 0
    while len(texts) < most and any(len(source) > start for source in sources):
        for source in sources:
            texts += source[start : start + 50]
        start += 50
    return texts[:most]


def check(file: Path, texts: Sequence[str]) -> None:
    tokenizer = build_tokenizer(read_header(file))
    served = dict(zip(texts, tokenize(file, texts), strict=True))
    assert first_difference(encoder(tokenizer), served.__getitem__, texts) is None


@pytest.fixture(autouse=True)
def _tools() -> None:
    needs("library", "bindings")


@pytest.mark.tools
@pytest.mark.slow
def test_ten_thousand_lines_have_the_tokens_of_the_real_model(tmp_path: Path) -> None:
    texts = [*PROBES, *lines(10_000)]
    assert len(texts) > 10_000
    check(smollm2(), texts)
    # saved and loaded, as training does it
    build_tokenizer(read_header(smollm2())).save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    served = dict(zip(texts[:300], tokenize(smollm2(), texts[:300]), strict=True))
    assert first_difference(encoder(loaded), served.__getitem__, texts[:300]) is None


def one_of_each() -> dict[PreTokenizer, str]:
    """A name of every way to split."""
    names: dict[PreTokenizer, str] = {}
    for name, split in NAMES.items():
        names.setdefault(split, name)
    return names


@pytest.mark.tools
@pytest.mark.slow
@pytest.mark.parametrize("name", one_of_each().values())
def test_every_pre_tokenizer_splits_as_llama_cpp(name: str, tmp_path: Path) -> None:
    source = read_header(public_data(GPT2))
    file = with_pre_tokenizer(tmp_path / "vocabulary.gguf", source, name)
    check(file, [*PROBES, CHAT, *lines(400)])
    adds_bos = build_tokenizer(read_header(file))("a")["input_ids"][0] == 50257
    assert adds_bos == NAMES[name].adds_bos


@pytest.mark.tools
@pytest.mark.slow
@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentence_pieces_are_those_of_llama_cpp(space_prefix: bool, tmp_path: Path) -> None:
    texts = lines(1500)
    file = sentence_pieces(
        tmp_path / "pieces.gguf", texts[:1000], size=3000, space_prefix=space_prefix
    )
    check(file, [*PROBES, PIECES_CHAT, *texts[800:]])
    tokenizer = build_tokenizer(read_header(file))
    assert tokenizer("a")["input_ids"][0] == 1, "BOS, unless the file says otherwise"
    text = "  two spaces\n\nand Größe 東京 🙂"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    # "\n\n" is a token of its own, after which llama.cpp, too, begins with a space
    spaced = text.replace("\n\nand", "\n\n and") if space_prefix else text
    assert tokenizer.decode(ids) == spaced


@pytest.mark.tools
@pytest.mark.slow
def test_an_unknown_pre_tokenizer_is_refused_with_the_first_text_that_differs(
    tmp_path: Path,
) -> None:
    source = read_header(public_data(GPT2))
    file = with_pre_tokenizer(tmp_path / "vocabulary.gguf", source, "viking")
    with pytest.raises(ModelError) as caught:
        base.build_tokenizer_checked(read_header(file))
    message = str(caught.value)
    assert "pre-tokenizer 'viking' is unknown here" in message
    assert any(repr(text)[:30] in message for text in PROBES) and "in llama.cpp" in message
    with_pre_tokenizer(tmp_path / "vocabulary.gguf", source, "qwen-2")
    with pytest.raises(ModelError, match=r"Did you mean 'qwen2'\?"):
        build_tokenizer(read_header(file))


@pytest.mark.tools
@pytest.mark.slow
def test_tokens_that_are_not_those_that_are_served_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = read_header(public_data(GPT2))
    file = with_pre_tokenizer(tmp_path / "vocabulary.gguf", source, "qwen2")
    base.build_tokenizer_checked(read_header(file))
    # as if the rules here were those of another model
    monkeypatch.setitem(NAMES, "qwen2", NAMES["gpt-2"])
    with pytest.raises(ModelError, match="would not be those that are served: '"):
        base.build_tokenizer_checked(read_header(file))


def changed(header: GgufHeader, **values: object) -> GgufHeader:
    keys = {f"tokenizer.ggml.{name}": value for name, value in values.items()}
    return GgufHeader(header.path, header.metadata | keys, header.tensors)


@pytest.mark.tools
@pytest.mark.slow
def test_a_vocabulary_that_cannot_be_rebuilt_is_refused(tmp_path: Path) -> None:
    header = read_header(public_data(GPT2))
    tokens = header.metadata["tokenizer.ggml.tokens"]
    for values, why in (
        ({"model": "rwkv"}, "of the kind 'rwkv'"),
        ({"tokens": []}, "it has no tokenizer"),
        ({"tokens": [*tokens[:-1], "a"]}, "two of its tokens"),
        ({"tokens": tokens[:100]}, "100 tokens, 50257 kinds"),
        ({"tokens": "x"}, "no list of str"),
        ({"merges": ["a zzzq"]}, "joins no tokens"),
        ({"merges": ["ab"]}, "joins no tokens"),
        ({"eos_token_id": 10**6}, "eos token 1000000 is none of its tokens"),
        ({"add_eos_token": True}, "puts EOS behind every text"),
        ({"model": "llama"}, "no token for the byte"),
    ):
        with pytest.raises(ModelError, match=why):
            build_tokenizer(changed(header, **values))
