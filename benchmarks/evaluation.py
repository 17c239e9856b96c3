"""Evaluating by ours against plain transformers loops, in one process: `python
benchmarks/evaluation.py --folder DIR [--json FILE]`.

The same rows, base, adapter and precision; both sides of a comparison, the base and the adapter.
Three peers: `loop` takes one sequence after the other, `batched` padded batches of the size that an
evaluation takes, `merged` these with the adapter merged into the weights. For `loss` they run each
prompt with each answer and take the log-probabilities of the answer; for `generate` they answer
greedily. Ours shares prompts and packs batches, as `thumbwheel evaluate` does. The loops are given
every n-th row (by length), and their time is multiplied; how far each peer and ours agree is shown.
The contestants take turns after a trial of one row, and medians are compared: above 1 is in our
favour. The prompts of `loss` and `generate` share nothing with each other; those of `agent loss`
and `agent generate` are the same ones behind one system message of --system words, and its answers
have a quarter of the tokens.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import material
import raw
import torch
import transformers

from thumbwheel.engine.load import LoraSettings, attach_lora, load_base
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.evaluation.local_model import LocalResponder
from thumbwheel.evaluation.responder import chunks
from thumbwheel.evaluation.types import Ask, AskLikelihood, EvaluationConfig

PEERS = ("loop", "batched", "merged")
KINDS = ("loss", "agent loss", "generate", "agent generate")


class Loops:
    """What somebody writes with transformers and PEFT in ten lines."""

    def __init__(self, model: Any, builder: PromptBuilder) -> None:
        self.model, self.builder = model, builder

    def losses(self, rows: list[AskLikelihood]) -> list[tuple[float, float]]:
        """Summed log-probabilities of both answers to each prompt."""
        return [
            (self._sum(row.prompt, row.texts[0]), self._sum(row.prompt, row.texts[1]))
            for row in rows
        ]

    def _sum(self, prompt: list[dict[str, Any]], text: str) -> float:
        row = self.builder.row(prompt, text)
        ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
        with torch.inference_mode():
            logps = self.model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
        picked = logps.gather(1, ids[0, 1:, None])[:, 0]
        return float(picked[len(row.prompt_ids) - 1 :].double().sum())

    def answers(self, asks: list[Ask]) -> list[tuple[int, ...]]:
        """The tokens of each answer."""
        answers = []
        for ask in asks:
            ids = torch.tensor([self.builder.prompt(ask.prompt)])
            with torch.inference_mode():
                tokens = self.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=ask.max_new_tokens,
                    eos_token_id=list(self.builder.stop_ids),
                    pad_token_id=0,
                )
            answers.append(tuple(tokens[0, ids.shape[1] :].tolist()))
        return answers


class Batches(Loops):
    """The same in batches of `size` rows of like length, padded: what somebody writes who knows
    transformers well."""

    def __init__(self, model: Any, builder: PromptBuilder, size: int) -> None:
        super().__init__(model, builder)
        self.size = size

    def losses(self, rows: list[AskLikelihood]) -> list[tuple[float, float]]:
        """Each answer behind its own copy of the prompt, padded on the right."""
        texts = [(row.prompt, text) for row in rows for text in row.texts]
        sums: list[float] = []
        for start in range(0, len(texts), self.size):
            encoded = [
                self.builder.row(prompt, text) for prompt, text in texts[start : start + self.size]
            ]
            sequences = [[*row.prompt_ids, *row.completion_ids] for row in encoded]
            ids, mask = _padded(sequences, left=False)
            with torch.inference_mode():
                logits = self.model(input_ids=ids, attention_mask=mask).logits
            for number, (row, sequence) in enumerate(zip(encoded, sequences, strict=True)):
                first = len(row.prompt_ids)
                logps = logits[number, first - 1 : len(sequence) - 1].float().log_softmax(-1)
                answer = torch.tensor(sequence[first:])
                sums.append(float(logps.gather(1, answer[:, None]).double().sum()))
        return list(zip(sums[::2], sums[1::2], strict=True))

    def answers(self, asks: list[Ask]) -> list[tuple[int, ...]]:
        """Greedy, padded on the left; a batch goes on until its last answer has ended."""
        answers: list[tuple[int, ...]] = []
        stops = list(self.builder.stop_ids)
        for start in range(0, len(asks), self.size):
            batch = asks[start : start + self.size]
            ids, mask = _padded([self.builder.prompt(ask.prompt) for ask in batch], left=True)
            with torch.inference_mode():
                tokens = self.model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    do_sample=False,
                    max_new_tokens=batch[0].max_new_tokens,
                    eos_token_id=stops,
                    pad_token_id=0,
                )
            for answer in tokens[:, ids.shape[1] :].tolist():
                ends = [position + 1 for position, token in enumerate(answer) if token in stops]
                answers.append(tuple(answer[: ends[0]] if ends else answer))
        return answers


def _padded(sequences: list[list[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, attention mask), [rows, longest]."""
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, sequence in enumerate(sequences):
        row = slice(longest - len(sequence), longest) if left else slice(len(sequence))
        ids[number, row] = torch.tensor(sequence)
        mask[number, row] = 1
    return ids, mask


def sides(
    folder: Path, config: EvaluationConfig
) -> tuple[dict[str, list[Loops]], list[LocalResponder]]:
    """(base, adapter) by each of the peers, and as ours."""
    base, tokenizer = load_base(str(folder), "float32", local_only=True)
    builder = PromptBuilder(tokenizer)
    torch.manual_seed(0)
    plain = load_base(str(folder), "float32", local_only=True)[0].eval()
    adapted = [
        attach_lora(load_base(str(folder), "float32", local_only=True)[0], LoraSettings(), seed=0)[
            0
        ].eval()
    ]
    adapted.append(attach_lora(base, LoraSettings(), seed=0)[0].eval())
    for model in adapted:
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.02)
    our_sides = Shared(adapted[1], builder, config)
    merged = copy.deepcopy(adapted[0]).merge_and_unload().eval()
    size = config.batch_size
    others: dict[str, list[Loops]] = {
        "loop": [Loops(plain, builder), Loops(adapted[0], builder)],
        "batched": [Batches(plain, builder, size), Batches(adapted[0], builder, size)],
        "merged": [Batches(plain, builder, size), Batches(merged, builder, size)],
    }
    return others, [
        LocalResponder(our_sides, voice, "", "", builder)  # type: ignore[arg-type]
        for voice in ("", "default")
    ]


class Shared(SimpleNamespace):
    """A loaded base with an adapter, as `local_model.LocalModel` reads one from a home."""

    def __init__(self, model: Any, builder: PromptBuilder, config: EvaluationConfig) -> None:
        from thumbwheel.evaluation.local_model import LocalModel

        super().__init__(
            model=model, builder=builder, config=config, _adapter_names={"default": "default"}
        )
        self.with_adapter = lambda name: LocalModel.with_adapter(self, name)  # type: ignore[arg-type]


def ours(
    side: LocalResponder, asks: list[Any], reply: Callable[[list[Any]], list[Any]]
) -> list[Any]:
    """The replies, asked in the chunks that an evaluation asks in."""
    named = {str(number): ask for number, ask in enumerate(asks)}
    replies: dict[str, Any] = {}
    for chunk in chunks(named, side.batch):
        replies.update(zip(chunk, reply([named[name] for name in chunk]), strict=True))
    return [replies[name] for name in named]


def contestants(folder: Path, options: argparse.Namespace) -> dict[str, Callable[[int], Any]]:
    """name -> one pass over both sides, of every n-th row."""
    config = EvaluationConfig(max_new_tokens=options.tokens, max_length=2048, dtype="float32")
    pairs = json.loads((folder / "pairs.json").read_text())
    system = {
        "role": "system",
        "content": " ".join(
            " ".join(pair["prompt"] for pair in pairs[::-1]).split()[: options.system]
        ),
    }
    rows = [
        AskLikelihood(
            [{"role": "user", "content": pair["prompt"]}], (pair["chosen"], pair["rejected"])
        )
        for pair in pairs
    ]
    asks = by_length([Ask(row.prompt, options.tokens) for row in rows[: options.prompts]])
    rows = by_length(rows[: options.rows])
    others, packed = sides(folder / options.size, config)
    behind = [AskLikelihood([system, *row.prompt], row.texts) for row in rows]
    filed = [Ask([system, *pair.prompt], options.tokens // 4) for pair in asks]

    def replied(peer: str, name: str, asked: list[Any], n: int) -> list[Any]:
        return [getattr(side, name)(asked[::n]) for side in others[peer]]

    def scored(asked: list[Any], n: int) -> list[Any]:
        return [
            [
                tuple(total for total, _ in sums)
                for sums in ours(side, asked[::n], side.log_probabilities)
            ]
            for side in packed
        ]

    def answered(asked: list[Any], n: int) -> list[Any]:
        return [
            [answers[0].ids for answers in ours(side, asked[::n], side.answers)] for side in packed
        ]

    given_to = {"loss": rows, "agent loss": behind, "generate": asks, "agent generate": filed}
    passes: dict[str, Callable[[int], Any]] = {}
    for kind in KINDS:
        loss = kind.endswith("loss")
        for peer in others:
            passes[f"{kind} {peer}"] = partial(
                replied, peer, "losses" if loss else "answers", given_to[kind]
            )
        passes[f"{kind} ours"] = partial(scored if loss else answered, given_to[kind])
    return passes


def by_length(asks: list[Any]) -> list[Any]:
    """So that every n-th is a fair choice."""
    return sorted(asks, key=lambda ask: len(ask.prompt[0]["content"]))


def agreement(results: dict[str, Any], peer: str, every: int) -> dict[str, float]:
    """How far ours is from a peer that got every n-th row: the largest difference of a
    log-probability, and the share of equal answers."""
    gap, answers = 0.0, []
    for kind in KINDS:
        if kind.endswith("generate"):
            both = zip(
                results[f"{kind} {peer}"],
                [side[::every] for side in results[f"{kind} ours"]],
                strict=True,
            )
            answers += [
                answer == other for sides in both for answer, other in zip(*sides, strict=True)
            ]
        else:
            peer_values = torch.tensor(results[f"{kind} {peer}"], dtype=torch.float64)
            our_values = torch.tensor(
                [side[::every] for side in results[f"{kind} ours"]], dtype=torch.float64
            )
            gap = max(
                gap,
                float(((peer_values - our_values).abs() / peer_values.abs().clamp(min=1)).max()),
            )
    return {"largest_relative_difference": gap, "equal_answers": sum(answers) / len(answers)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the models are made")
    raw.option(parser, "evaluation")
    parser.add_argument("--size", default="26m", choices=list(material.SIZES))
    for name, default in {
        "rows": 64,
        "prompts": 128,
        "tokens": 128,
        "system": 200,
        "every": 16,
        "rounds": 3,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    material.make(options.folder, options.size)
    passes = contestants(options.folder, options)
    results: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for run in passes.values():
        run(options.prompts)
    for _ in range(options.rounds):
        for name, run in passes.items():
            every = options.every if name.endswith("loop") else 1
            start = time.perf_counter()
            results[name] = run(every)
            took = time.perf_counter() - start
            size = options.rows if "loss" in name else options.prompts
            seconds[name].append(took * size / len(range(0, size, every)))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    whole = {who: sum(medians[f"{kind} {who}"] for kind in KINDS) for who in (*PEERS, "ours")}
    report = {
        "size": options.size,
        "rows": options.rows,
        "prompts": options.prompts,
        "tokens": options.tokens,
        "system": options.system,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "seconds": medians,
        "every": options.every,
        "agreement": {
            peer: agreement(results, peer, options.every if peer == "loop" else 1) for peer in PEERS
        },
        "ratio": {
            peer: {kind: medians[f"{kind} {peer}"] / medians[f"{kind} ours"] for kind in KINDS}
            for peer in PEERS
        },
        "ratio_whole": {peer: whole[peer] / whole["ours"] for peer in PEERS},
    }
    print(json.dumps(report, indent=2))
    raw.write(options.json, **report)


if __name__ == "__main__":
    main()
