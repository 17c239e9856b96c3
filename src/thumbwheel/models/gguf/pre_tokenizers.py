"""How llama.cpp splits a text before it merges bytes to tokens, by the name in
`tokenizer.ggml.pre`.

A GGUF file names its pre-tokenizer and does not contain it. The patterns here split as llama.cpp
splits, also where the model's first tokenizer does it in another way: what is trained has to see
the tokens that are served. To add a name, add it to NAMES; the test of tokens compares it with
llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

ENGLISH_ENDINGS = r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
"""`'s`, `'LL`. No (?i): it would let a long s (U+017F) pass for an s."""
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{ENGLISH_ENDINGS}|{WORD}|\p{{N}}{{1,3}}|{SYMBOLS}|{SPACES}"
QWEN2 = rf"{ENGLISH_ENDINGS}|{WORD}|\p{{N}}|{SYMBOLS}|{SPACES}"
QWEN35 = (
    rf"{ENGLISH_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
)

# llama.cpp knows upper and lower case of ASCII alone: any other letter passes for both
UPPER, LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
CASED_WORD = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{{ending}}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{{ending}}"
)
CASED_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
TEKKEN = rf"{CASED_WORD.replace('{ending}', '')}|\p{{N}}|{CASED_REST}"
GPT4O = rf"{CASED_WORD.replace('{ending}', f'(?:{ENGLISH_ENDINGS})?')}|\p{{N}}{{1,3}}|{CASED_REST}"

DEEPSEEK_WORD = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
IDEOGRAPHS = r"[一-龥぀-ゟ゠-ヿ]+"
DIGIT, THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"


@dataclass(frozen=True)
class PreTokenizer:
    """`patterns` split one after the other; what matches and what lies between are pieces.

    `whole_pieces`: a piece that is a token is not built from merges.
    """

    patterns: tuple[str, ...]
    whole_pieces: bool = False
    adds_bos: bool = False
    """Whether BOS is put before a text where the file does not say."""


_GPT2, _SMOLLM = PreTokenizer((GPT2,)), PreTokenizer((DIGIT, GPT2))
_LLAMA3 = PreTokenizer((LLAMA3,), whole_pieces=True, adds_bos=True)
_QWEN2, _GPT4O = PreTokenizer((QWEN2,)), PreTokenizer((GPT4O,))

NAMES = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "exaone4": _GPT2,
    "trillion": _GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "command-r": _SMOLLM,
    "codeshell": _SMOLLM,
    "exaone": _SMOLLM,
    "minerva-7b": _SMOLLM,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": PreTokenizer((LLAMA3,)),
    "smaug-bpe": PreTokenizer((LLAMA3,)),
    "chatglm-bpe": PreTokenizer((LLAMA3,)),
    "glm4": PreTokenizer((LLAMA3,), whole_pieces=True),
    "qwen2": _QWEN2,
    "stablelm2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "hunyuan": _QWEN2,
    "megrez": _QWEN2,
    "qwen35": PreTokenizer((QWEN35,)),
    "tekken": PreTokenizer((TEKKEN,), whole_pieces=True, adds_bos=True),
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "deepseek-v3": PreTokenizer((THREE_DIGITS, IDEOGRAPHS, DEEPSEEK_WORD)),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]")),
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}
"""What the file calls its pre-tokenizer -> what llama.cpp does then."""
