"""What somebody writes in an afternoon: plain PyTorch and PEFT, supervised on good answers, nothing
held out, the last weights kept.

`python plain_loop.py SPEC.json`; the fields of the spec are in learner.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.optim.lr_scheduler import CosineAnnealingLR

from learners.learner import Spec, load, report, token_row

RANK, ALPHA, BATCH = 16, 32, 16


@dataclass(frozen=True)
class Recipe:
    """How a person might train: the rate is constant, or falls to zero by a cosine."""

    epochs: int
    rate: float
    cosine: bool = False


RECIPES = {
    "plain 4x1e-3": Recipe(4, 1e-3),
    "plain 6x2e-3": Recipe(6, 2e-3),
    "plain 6x2e-3 cosine": Recipe(6, 2e-3, cosine=True),
    "plain 6x5e-4 cosine": Recipe(6, 5e-4, cosine=True),
}
PLAIN_REWARD = "plain reward"


def main() -> None:
    """Train and save."""
    spec = Spec.read()
    if spec.learner == PLAIN_REWARD:
        learn_preferences(spec)
        return
    model, tokenizer = load(spec.base)
    rows = [token_row(tokenizer, row["prompt"], row["completion"]) for row in spec.rows("chats")]
    model = train(model, rows, RECIPES[spec.learner], spec.seed)
    model.save_pretrained(spec.out)
    report(spec)


def text_of(tokenizer: Any, prompt: list[dict[str, str]], completion: str) -> list[int]:
    """Ids of a prompt with an answer."""
    asked, answered = token_row(tokenizer, prompt, completion)
    return [*asked, *answered]


def train(
    model: Any, rows: Sequence[tuple[list[int], list[int]]], recipe: Recipe, seed: int
) -> Any:
    """Return the model with a LoRA adapter that learned `rows`."""
    torch.manual_seed(seed)
    model = get_peft_model(
        model,
        LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], lr=recipe.rate
    )
    steps = recipe.epochs * -(-len(rows) // BATCH)
    schedule = CosineAnnealingLR(optimizer, steps) if recipe.cosine else None
    order = random.Random(seed)
    model.train()
    for _ in range(recipe.epochs):
        shuffled = order.sample(list(rows), len(rows))
        for start in range(0, len(shuffled), BATCH):
            loss = answer_loss(model, shuffled[start : start + BATCH])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()
    return model


def answer_loss(model: Any, batch: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Mean negative log-likelihood of the answers' tokens."""
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(prompt + answer) for prompt, answer in batch], batch_first=True
    )
    labels = torch.full_like(ids, -100)
    for number, (prompt, answer) in enumerate(batch):
        end = len(prompt) + len(answer)
        labels[number, len(prompt) : end] = ids[number, len(prompt) : end]
    logits = model(input_ids=ids[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def learn_preferences(spec: Spec) -> None:
    """A reward model from pairs (Bradley-Terry), by the first of the recipes."""
    recipe = RECIPES["plain 4x1e-3"]
    model, tokenizer = load(spec.base, scores=True)
    pairs = [
        [text_of(tokenizer, row["prompt"], row[side]) for side in ("chosen", "rejected")]
        for row in spec.rows("pairs")
    ]
    torch.manual_seed(spec.seed)
    model = get_peft_model(
        model,
        LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="SEQ_CLS"),
    )
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], lr=recipe.rate
    )
    order = random.Random(spec.seed)
    model.train()
    for _ in range(recipe.epochs):
        shuffled = order.sample(pairs, len(pairs))
        for start in range(0, len(shuffled), BATCH):
            texts = [
                torch.tensor(text) for pair in shuffled[start : start + BATCH] for text in pair
            ]
            ids = torch.nn.utils.rnn.pad_sequence(
                texts, batch_first=True, padding_value=tokenizer.pad_token_id
            )
            scores = model(input_ids=ids, attention_mask=ids != tokenizer.pad_token_id).logits.view(
                -1, 2
            )
            loss = -torch.nn.functional.logsigmoid(scores[:, 0] - scores[:, 1]).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(spec.out)
    report(spec)


if __name__ == "__main__":
    main()
