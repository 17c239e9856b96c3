"""The base model of the demo: a tiny Qwen2 that learned the format and the common rules from the
world's own text.

Here are its tokenizer, its training from scratch and its cache on disk. It is trained towards
`world.population_filing` and knows no private habit. The same model serves every seed of the demo.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from thumbwheel.demo import mail, world

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Tokenizer

NAME = "filer-base"
REVISION = 3  # raise it when a change of this file changes what is trained
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MAX_ANSWER = 24  # tokens; a well-formed answer has ten
ANSWER_WEIGHT = 10.0  # loss weight of an answer token against a token of the mail

Progress = Callable[[int, int, float], None]
Row = tuple[list[int], int]  # token ids, length of the prompt


@dataclass(frozen=True)
class BaseConfig:
    """What the base is made of. Every field is part of the cache key."""

    seed: int = 7
    vocabulary: int = 1536
    hidden: int = 256
    intermediate: int = 512
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    mails: int = 18_000
    batch: int = 32
    learning_rate: float = 2e-3
    warmup: float = 0.1


def fingerprint(config: BaseConfig) -> str:
    """Hash everything that decides the base: config, revision, wordings and rules."""
    modules: tuple[ModuleType, ...] = (mail, world)
    parts = [
        json.dumps(asdict(config), sort_keys=True),
        str(REVISION),
        CHAT_TEMPLATE,
        *map(inspect.getsource, modules),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def ensure_base(
    cache: Path, config: BaseConfig | None = None, progress: Progress | None = None
) -> Path:
    """Return the directory of the trained base under `cache`; train it first if it is not there
    yet.

    `progress` gets (step, steps, loss). The directory appears by one rename, so a killed training
    leaves no half base.
    """
    config = config or BaseConfig()
    target = cache / f"{NAME}-{fingerprint(config)}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=cache))
    try:
        model, tokenizer = train_base(config, progress)
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def publish(scratch: Path, target: Path) -> None:
    """Rename a finished base into its place, unless somebody else put the same one there first."""
    try:
        scratch.rename(target)
    except OSError:
        if not target.is_dir():  # another process finished the same base first, which is as good
            raise


def train_base(
    config: BaseConfig, progress: Progress | None = None
) -> tuple[PreTrainedModel, Qwen2Tokenizer]:
    """Train tokenizer and model from scratch on `config.mails` mails, each filed by some person of
    the population."""
    import torch

    rng = random.Random(f"base:{config.seed}")
    chats = _population_chats(rng, config.mails)
    tokenizer = make_tokenizer(config, chats)
    rows = [answer_row(tokenizer, chat) for chat in chats]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = make_model(config, tokenizer)
    _fit(model, rows, config, rng, progress)
    model.eval()  # type: ignore[no-untyped-call]
    return model, tokenizer


def _population_chats(rng: random.Random, count: int) -> list[list[dict[str, str]]]:
    chats = []
    for letter, _ in zip(world.draw_mails(rng, "any"), range(count), strict=False):
        answer = world.population_filing(rng, letter).text()
        chats.append([*world.messages(letter), {"role": "assistant", "content": answer}])
    return chats


def make_tokenizer(config: BaseConfig, chats: Sequence[list[dict[str, str]]]) -> Qwen2Tokenizer:
    """Train a byte-level BPE on the texts of `chats`, with the ChatML template.

    It is a Qwen2 tokenizer, because transformers loads that class, and its way to split words, for
    a Qwen2 model whatever class was saved.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    splitter = Qwen2Tokenizer().backend_tokenizer
    inner = Tokenizer(models.BPE())
    inner.normalizer, inner.pre_tokenizer = splitter.normalizer, splitter.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(
        (f"{message['role']}\n{message['content']}" for chat in chats for message in chat), trainer
    )
    learned = json.loads(inner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(pair) for pair in learned["merges"]],  # type: ignore[misc]
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        model_max_length=512,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(config: BaseConfig, tokenizer: Qwen2Tokenizer) -> PreTrainedModel:
    """Return the untrained network, fp32, with tied embeddings."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(shape)


def prompt_text(tokenizer: PreTrainedTokenizerBase, chat: Sequence[dict[str, str]]) -> str:
    """Render the chat through the template, up to the start of the model's answer."""
    return str(
        tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True)
    )


def answer_row(tokenizer: PreTrainedTokenizerBase, chat: Sequence[dict[str, str]]) -> Row:
    """Return the tokens of a chat whose last message is the answer, and the length of its
    prompt."""
    prompt = tokenizer(prompt_text(tokenizer, chat[:-1]))["input_ids"]
    answer = tokenizer(chat[-1]["content"] + END)["input_ids"]
    return prompt + answer, len(prompt)


def batches(rows: Sequence[Row], size: int, rng: random.Random) -> Iterator[list[Row]]:
    """Yield the rows once, in batches of nearly equal length, in random order."""
    order = sorted(rng.sample(range(len(rows)), len(rows)), key=lambda i: len(rows[i][0]) // 4)
    cuts = list(range(0, len(order), size))
    rng.shuffle(cuts)
    for cut in cuts:
        yield [rows[i] for i in order[cut : cut + size]]


def _fit(
    model: PreTrainedModel,
    rows: Sequence[Row],
    config: BaseConfig,
    rng: random.Random,
    progress: Progress | None,
) -> None:
    import torch

    steps = math.ceil(len(rows) / config.batch)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: _cosine(step / steps, config.warmup)
    )
    model.train()
    for step, batch in enumerate(batches(rows, config.batch, rng), start=1):
        loss = batch_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if progress:
            progress(step, steps, loss.item())


def _cosine(progress: float, warmup: float) -> float:
    """Return the factor of the learning rate: a linear warm-up, then half a cosine down to 0."""
    if progress < warmup:
        return (progress + 1e-3) / warmup
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def batch_loss(model: PreTrainedModel, batch: Sequence[Row]) -> torch.Tensor:
    """Return the weighted next-token loss of a right-padded batch. In fp32: a base that AMX units
    trained in bf16 learned 11 points from the same feedback, where this one learns 27."""
    import torch

    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row, _ in batch], batch_first=True)
    positions = torch.arange(ids.shape[1])
    lengths = torch.tensor([len(row) for row, _ in batch])[:, None]
    starts = torch.tensor([prompt for _, prompt in batch])[:, None]
    weight = torch.where(positions >= starts, ANSWER_WEIGHT, 1.0) * (positions < lengths)
    logits = model(input_ids=ids[:, :-1]).logits  # causal: padding on the right is never seen
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    return (loss * weight[:, 1:].flatten()).sum() / weight[:, 1:].sum()
