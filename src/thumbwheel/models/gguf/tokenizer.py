"""The tokenizer of a GGUF file, built so that a text has the tokens that llama.cpp gives it.

llama.cpp changes no character of a text before it splits it, so these tokenizers have no Unicode
normalization, also where the model's first tokenizer has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.core.plugins import nearest
from thumbwheel.models.gguf.header import GgufHeader
from thumbwheel.models.gguf.pre_tokenizers import NAMES, PreTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens in `tokenizer.ggml.token_type`."""
SPACE = "\u2581"
"""What SentencePiece writes for a space."""
ENDS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "</s>",
        "<eos>",
        "<EOT>",
    }
)
"""Texts that llama.cpp takes for the end of an answer, and so for control tokens, whatever kind the
file gives them."""
LONGEST_TOKEN = 1024
"""Characters; each way to cut a token in two is tried."""
KEPT_SPACES = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Tokens of Phi-3 behind which spaces count; behind its other control tokens they do not."""
PROBES = (
    "Hello, world! I'm sure we'll've it; DON'T, ſ'ſ.",
    "Größe, naïve, façade, Ωmega, élève, ẞtraße, ÀÉÎ éÈê, e\u0301le\u0300ve, u\u0308ber",
    "東京タワー 한국어 中文分词 русский עברית العربية ไทย हिन्दी",
    "17 * 23 = 391; 3.14159, 1,000,000 0042 12345678901 ½ ² Ⅷ",
    "  two spaces,\ttab,\n\n  newlines \r\n and trailing   ",
    "🙂🇩🇪👩\u200d👩\u200d👧 \u00a0\u2009\u200b\u3000 end",
    "def f(x):\n    return {'a': [x**2, ...]}  # <b>&amp;</b> https://a.b/?c=d%20e_$^~|`",
    "camelCaseWord XMLHttpRequest snake_case SHOUT///\n\n\n\n",
)
"""Texts on which tokenizers differ: endings, accents, scripts, digits, spaces, code."""

Encode = Callable[[str], list[int]]
"""The ids of a text, its control tokens read as such and none added."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file, as its header has them."""

    tokens: list[str]
    kinds: list[int]
    scores: list[float]
    merges: list[str]

    @classmethod
    def read(cls, header: GgufHeader) -> Vocabulary:
        """Read the lists from the header. Raises ModelError if they do not fit each other."""
        tokens = _list(header, "tokens", str)
        if not tokens:
            raise refusal(header.path, "it has no tokenizer", "Get a file with a vocabulary")
        kinds = _list(header, "token_type", int) or [NORMAL] * len(tokens)
        scores = _list(header, "scores", float) or [0.0] * len(tokens)
        if not len(tokens) == len(kinds) == len(scores):
            why = (
                f"it has {len(tokens)} tokens, {len(kinds)} kinds and {len(scores)} scores of them"
            )
            raise refusal(header.path, why)
        # llama.cpp gives a token without a text this one
        tokens = [text or f"[EMPTY_{number}]" for number, text in enumerate(tokens)]
        longest = max(map(len, tokens))
        if longest > LONGEST_TOKEN:
            why = f"one of its tokens has {longest:,} characters, and {LONGEST_TOKEN} are the most"
            raise refusal(header.path, why)
        if len(set(tokens)) != len(tokens):
            raise refusal(header.path, "two of its tokens have the same text")
        return cls(tokens, kinds, scores, _list(header, "merges", str))


def _list(header: GgufHeader, name: str, kind: type) -> list[Any]:
    values = header.metadata.get(f"tokenizer.ggml.{name}", [])
    wanted = (float, int) if kind is float else kind
    if not isinstance(values, list) or not all(isinstance(value, wanted) for value in values):
        raise refusal(header.path, f"its tokenizer.ggml.{name} is no list of {kind.__name__}")
    return values


def build_tokenizer(header: GgufHeader) -> Any:
    """Build the tokenizer of the file, as transformers uses one. Raises ModelError for a kind that
    cannot be rebuilt."""
    model = header.metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        return tokenizer_with(header, pre_tokenizer_of(header))
    if model == "llama":
        vocabulary = Vocabulary.read(header)
        return _finished(header, vocabulary, _sentence_pieces(header, vocabulary), adds_bos=True)
    raise refusal(
        header.path,
        f"its tokenizer is of the kind {model!r}, which cannot be rebuilt here",
        "Give the model's own folder, with tokenizer.json, instead of the GGUF file",
    )


def tokenizer_with(header: GgufHeader, split: PreTokenizer) -> Any:
    """Build the tokenizer of a file with byte-level tokens, which `split` splits."""
    vocabulary = Vocabulary.read(header)
    return _finished(
        header, vocabulary, _byte_level(header, vocabulary, split), adds_bos=split.adds_bos
    )


def pre_tokenizer_of(header: GgufHeader) -> PreTokenizer:
    """Return how the tokenizer of a byte-level vocabulary splits text. Raises ModelError for an
    unknown name."""
    name = name_of_pre_tokenizer(header)
    if name in NAMES:
        return NAMES[name]
    raise refusal(
        header.path,
        f"its pre-tokenizer {name!r:.60} is unknown here, and tokens would differ from those that "
        f"are served.{nearest(name, list(NAMES))}",
        "Give the model's own folder, with tokenizer.json, instead of the GGUF file",
    )


def name_of_pre_tokenizer(header: GgufHeader) -> str:
    """Return the file's name for its pre-tokenizer, or "default"."""
    return str(header.metadata.get("tokenizer.ggml.pre") or "default")


def refusal(path: Path, why: str, fix: str = "Download or copy the file again") -> ModelError:
    """Return the error for a file whose tokenizer cannot be used."""
    return ModelError(f"GGUF file {str(path)!r}", why, fix)


def _byte_level(header: GgufHeader, vocabulary: Vocabulary, split: PreTokenizer) -> Any:
    """Build a byte-level BPE, as of GPT-2, Llama 3, Qwen, Mistral's Tekken."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    ids = {text: number for number, text in enumerate(vocabulary.tokens)}
    ranks: dict[tuple[str, str], None] = {}
    for merge in vocabulary.merges:
        # the first part may be a space, and has at least one character
        end = merge.find(" ", 1)
        pair = (merge[:end], merge[end + 1 :])
        if end < 0 or pair[0] + pair[1] not in ids or not all(part in ids for part in pair):
            raise refusal(header.path, f"its merge {merge[:60]!r} joins no tokens to a token")
        ranks.setdefault(pair)
    model = models.BPE(vocab=ids, merges=list(ranks), ignore_merges=split.whole_pieces)
    tokenizer = Tokenizer(model)
    parts = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in split.patterns
    ]
    bytes_to_characters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, bytes_to_characters])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_pieces(header: GgufHeader, vocabulary: Vocabulary) -> Any:
    """Build a BPE of SentencePiece, as of Llama 2, Mistral 7B, Gemma, Phi-3: the text is not split,
    spaces are characters, and the pair whose token has the highest score is merged first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    ids = {text: number for number, text in enumerate(vocabulary.tokens)}
    if missing := [f"<0x{byte:02X}>" for byte in range(256) if f"<0x{byte:02X}>" not in ids]:
        why = f"its tokenizer has no token for the byte {missing[0]}, and may not write every text"
        raise refusal(header.path, why)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges_by_score(vocabulary, ids),
            unk_token=_special_token(header, vocabulary, "unknown", 0),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    writes_space = header.metadata.get("tokenizer.ggml.add_space_prefix", True)
    # as llama.cpp, before the text and behind every control token
    prefix = [normalizers.Prepend(SPACE)] if writes_space else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if writes_space:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return every way in which two tokens make a third, best score of the third first."""
    merges: list[tuple[float, int, tuple[str, str]]] = []
    for number, text in enumerate(vocabulary.tokens):
        for cut in range(1, len(text)):
            pair = (text[:cut], text[cut:])
            if pair[0] in ids and pair[1] in ids:
                merges.append((-vocabulary.scores[number], number, pair))
    return [pair for _, _, pair in sorted(merges)]


def _finished(header: GgufHeader, vocabulary: Vocabulary, tokenizer: Any, adds_bos: bool) -> Any:
    """Complete `tokenizer` with the file's special tokens, BOS and chat template, as transformers
    uses one."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    metadata = header.metadata
    _add_special_tokens(header, vocabulary, tokenizer)
    if metadata.get("tokenizer.ggml.add_eos_token"):
        raise refusal(
            header.path,
            "its tokenizer puts EOS behind every text, also behind a prompt",
            "Set tokenizer.ggml.add_eos_token to false in the file",
        )
    named = {
        "bos_token": _special_token(header, vocabulary, "bos", 1),
        "eos_token": _special_token(header, vocabulary, "eos", 2),
        "unk_token": _special_token(header, vocabulary, "unknown", 0),
        "pad_token": _special_token(header, vocabulary, "padding", None),
    }
    bos = named["bos_token"]
    if metadata.get("tokenizer.ggml.add_bos_token", adds_bos) and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", "$B"],
            special_tokens=[(bos, vocabulary.tokens.index(bos))],
        )
    options: dict[str, Any] = {name: token for name, token in named.items() if token is not None}
    longest = header.setting("context_length")
    if type(longest) is int:
        options["model_max_length"] = longest
    finished = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **options
    )
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        finished.chat_template = template
    return finished


def _add_special_tokens(header: GgufHeader, vocabulary: Vocabulary, tokenizer: Any) -> None:
    """Mark the tokens that are looked for in a text before it is split."""
    from tokenizers import AddedToken

    is_phi3 = any(
        name in str(header.metadata.get("general.name", "")).lower() for name in ("phi-3", "phi3")
    )
    control_tokens: list[Any] = []
    user_tokens: list[Any] = []
    for text, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        is_control = kind in (CONTROL, UNKNOWN) or text in ENDS
        if not is_control and kind != USER_DEFINED:
            continue
        strips = is_phi3 and text not in KEPT_SPACES
        token = AddedToken(text, special=is_control, normalized=False, rstrip=strips)
        (control_tokens if is_control else user_tokens).append(token)
    tokenizer.add_special_tokens(control_tokens)
    tokenizer.add_tokens(user_tokens)


def _special_token(
    header: GgufHeader, vocabulary: Vocabulary, name: str, default: int | None
) -> str | None:
    """Return the text of the token that the file names for a role; None if it names none. Only
    SentencePiece has a default."""
    if header.metadata.get("tokenizer.ggml.model") != "llama":
        default = None
    number = header.metadata.get(f"tokenizer.ggml.{name}_token_id", default)
    if number is None:
        return None
    if type(number) is not int or not 0 <= number < len(vocabulary.tokens):
        raise refusal(header.path, f"its {name} token {number!r:.60} is none of its tokens")
    return vocabulary.tokens[number]


@dataclass(frozen=True)
class TokenDifference:
    """A text that two tokenizers split in different ways."""

    text: str
    ids: list[int]
    expected: list[int]

    def __str__(self) -> str:
        start = 0
        for ours, reference in zip(self.ids, self.expected, strict=False):
            if ours != reference:
                break
            start += 1
        shown = slice(start, start + 6)
        return (
            f"{self.text[:80]!r}, from token {start + 1} on: {self.ids[shown]} here, "
            f"{self.expected[shown]} in llama.cpp"
        )


def first_difference(
    encode: Encode, served: Encode, texts: Iterable[str]
) -> TokenDifference | None:
    """Return the first of `texts` that has other tokens in training than when it is served; None if
    there is none."""
    for text in texts:
        ids, expected = encode(text), served(text)
        if ids != expected:
            return TokenDifference(text, ids, expected)
    return None


def encoder(tokenizer: Any) -> Encode:
    """Return a function that encodes a text with `tokenizer`, without BOS."""
    return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])
