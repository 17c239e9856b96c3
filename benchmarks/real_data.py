"""One turn of the wheel on real public data, by the commands that a user types: `python
benchmarks/real_data.py [--quick] [--json FILE]`.

Three agents: hh-rlhf pairs -> DPO, PandaLM pairs with three annotators -> DPO, GSM8K solutions
graded right or wrong -> KTO and a reward model. For each: import, import again (nothing new), data
plan, dataset build, train, evaluate against the base with intervals, gate, export merged, reload by
plain transformers in a process that cannot see our code, report.

The base is small (about 4 million parameters) and made here: a byte-level BPE and a Llama-shaped
model, trained on the dialogues of all three files with both the better and the worse answers, so it
favours neither. It does not know arithmetic and hardly English; what is shown is that the road
holds and what a model of that size gains, not a record.

The data is looked for in ../shared/data beside the checkout, or where THUMBWHEEL_TEST_DATA says.
About ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import raw

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("THUMBWHEEL_TEST_DATA") or ROOT.parent / "shared" / "data")
WORK = ROOT / ".bench" / "real-data"
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% "
    "endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
BLOCK, BATCH = 256, 16


@dataclass(frozen=True)
class Turn:
    """One agent: where its feedback comes from and how it is trained."""

    agent: str
    file: str
    source: str
    shape: str
    method: str
    options: tuple[str, ...]
    judge: tuple[str, ...] = ()
    """Options of a reward model that learns from the same rows; none is trained without them."""


SHORT = ("--max-length", "512", "--eval-steps", "15")
TURNS = (
    Turn(
        "hh",
        "preferences/hh-rlhf-harmless-base-test.jsonl",
        "preference",
        "pairs",
        "dpo",
        (*SHORT, "--num-train-epochs", "1"),
    ),
    Turn(
        "pandalm",
        "preferences/pandalm-testset-v1-3annotators.jsonl",
        "preference",
        "pairs",
        "dpo",
        SHORT,
    ),
    Turn(
        "gsm8k",
        "math/gsm8k-model-solutions-graded.jsonl",
        "graded",
        "labels",
        "kto",
        (*SHORT, "--max-steps", "60"),
        (
            "--loss-type",
            "classification",
            "--max-length",
            "512",
            "--eval-steps",
            "50",
            "--num-train-epochs",
            "1",
        ),
    ),
)


def main() -> None:
    """Make the base, do the turns, print the table."""
    arguments = parser().parse_args()
    turns = [turn for turn in TURNS if turn.agent in arguments.agents.split(",")]
    if missing := [str(DATA / turn.file) for turn in turns if not (DATA / turn.file).is_file()]:
        sys.exit(
            f"the public data is absent: {', '.join(missing)} (set THUMBWHEEL_TEST_DATA to the "
            "folder that holds it)"
        )
    shutil.rmtree(WORK, ignore_errors=True)
    started = time.monotonic()
    base = make_base(WORK / "base", 20 if arguments.quick else arguments.base_steps)
    rows = [turn_once(turn, WORK, arguments.quick) for turn in turns]
    show(base, rows)
    seconds = round(time.monotonic() - started)
    raw.write(arguments.json, quick=arguments.quick, seconds=seconds, base=base, turns=rows)


def parser() -> argparse.ArgumentParser:
    """The options."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(arguments, "real_data")
    arguments.add_argument(
        "--quick", action="store_true", help="a few steps of everything; the figures mean nothing"
    )
    arguments.add_argument(
        "--agents", default=",".join(turn.agent for turn in TURNS), help="comma-separated"
    )
    arguments.add_argument(
        "--base-steps",
        type=int,
        default=160,
        help=f"optimiser steps of the base, {BATCH} x {BLOCK} tokens each",
    )
    return arguments


def chats() -> Iterator[list[dict[str, str]]]:
    """Every recorded conversation of the three files, answers good and bad, as the sources read
    them."""
    from thumbwheel.importers.source import Line
    from thumbwheel.importers.sources import SOURCES
    from thumbwheel.importers.types import TraceRecord

    for turn in TURNS:
        for item in SOURCES.get(turn.source).read(DATA / turn.file, lambda _: None):
            for record in item.records if isinstance(item, Line) else []:
                if isinstance(record, TraceRecord) and record.output:
                    yield [*record.input, {"role": "assistant", "content": record.output}]


def make_base(folder: Path, steps: int) -> dict[str, Any]:
    """Train tokenizer and model as a language model and save them in `folder`."""
    import torch

    started = time.monotonic()
    texts = [message["content"] for chat in chats() for message in chat]
    tokenizer = make_tokenizer(texts)
    rendered = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats()]
    random.Random(0).shuffle(rendered)
    ids = torch.tensor(
        [
            token
            for sequence in tokenizer(rendered, add_special_tokens=False)["input_ids"]
            for token in sequence
        ]
    )
    blocks = ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK)
    torch.manual_seed(0)
    model = make_model(tokenizer)
    losses = fit(model, blocks, steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    seconds, parameters = (
        round(time.monotonic() - started, 1),
        sum(sequence.numel() for sequence in model.parameters()),
    )
    return {
        "parameters": parameters,
        "tokens": len(ids),
        "steps": steps,
        "loss": [losses[0], losses[-1]],
        "seconds": seconds,
    }


def make_tokenizer(texts: list[str]) -> Any:
    """A byte-level BPE of 4,096 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=4096, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<|pad|>", eos_token="<|end|>"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(tokenizer: Any) -> Any:
    """About four million parameters, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def fit(model: Any, blocks: Any, steps: int) -> list[float]:
    """Next-token prediction; returns the loss of every step."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 2e-3, total_steps=max(steps, 2), pct_start=0.1
    )
    order = torch.randperm(len(blocks)).repeat(1 + steps * BATCH // len(blocks))
    losses = []
    for step in range(steps):
        batch = blocks[order[step * BATCH : (step + 1) * BATCH]]
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(round(float(loss.detach()), 4))
    return losses


def turn_once(turn: Turn, work: Path, quick: bool) -> dict[str, Any]:
    """The whole turn of one agent; every step is a command."""
    home, file, seconds = work / "home", str(DATA / turn.file), {}

    def command(what: str, *arguments: str) -> Any:
        started = time.monotonic()
        result = thumbwheel(home, *arguments)
        seconds[what] = round(time.monotonic() - started, 1)
        return result

    agent = ("--agent", turn.agent, "--json")
    first = command("import", "import", turn.source, file, *agent)
    again = command("import again", "import", turn.source, file, *agent)
    plan = command("plan", "dataset", "plan", *agent)
    built = command("build", "dataset", "build", "--shape", turn.shape, *agent)
    few = ("--max-steps", "3") if quick else ()
    trained = command(
        "train",
        "train",
        turn.method,
        "--base",
        str(work / "base"),
        "--dataset",
        built["id"],
        *turn.options,
        *few,
        *agent,
    )
    judge = None
    if turn.judge:
        chosen = ("--base", str(work / "base"), "--dataset", built["id"], *turn.judge, *few)
        learned = command("train a reward model", "train", "reward", *chosen, *agent)
        judge = judged(home, turn.agent, learned["reward_model"], built["id"])
    short = ("--max-new-tokens", "8") if quick else ()
    evaluated = command(
        "evaluate", "evaluate", trained["version"], "--compare-base", *short, *agent
    )
    out = work / f"{turn.agent}-merged"
    exported = command(
        "export", "export", trained["version"], "--format", "merged", "--to", str(out), *agent
    )
    thumbwheel(
        home,
        "report",
        trained["version"],
        "--agent",
        turn.agent,
        "--to",
        str(work / f"{turn.agent}.html"),
        answer=False,
    )
    counts = {key: first[key] for key in ("read", "stored", "duplicates", "refused")}
    return {
        "agent": turn.agent,
        "method": turn.method,
        "imported": counts,
        "stored_again": again["stored"],
        "plan": plan["words"][-1],
        "rows": built["manifest"]["counts"],
        "train": trained["metrics"],
        "primary": evaluated["primary"],
        "preferences": evaluated["preferences"],
        "basis": evaluated["basis"],
        "decision": evaluated["decision"],
        "reward_model": judge,
        "parity": exported["parity"],
        "reloaded": reload(out),
        "seconds": seconds,
    }


def judged(home: Path, agent: str, name: str, dataset: str) -> dict[str, Any]:
    """What a reward model makes of the dev rows, with an interval over prompts: what only a machine
    graded fills no gate."""
    from thumbwheel.core.config import Home, Sources
    from thumbwheel.datasets.build import load_rows
    from thumbwheel.db.workspace import Workspace
    from thumbwheel.engine.reward_model import RewardModel
    from thumbwheel.models import reward_models
    from thumbwheel.training.reward_model_record import held_out

    with Workspace.open(Home(home), Sources({}, "", {})) as ws:
        model = RewardModel.load(
            reward_models.folder(ws, reward_models.find(ws, agent, name)), device="cpu"
        )
        return held_out(model, load_rows(ws, dataset, "dev"))


def thumbwheel(home: Path, *arguments: str, answer: bool = True) -> Any:
    """Run one command; its JSON answer, or the end of this script with what it said."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "thumbwheel", "--home", str(home), *arguments]
    print("$ thumbwheel", *arguments, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"failed with exit code {done.returncode}: {' '.join(arguments)}")
    return json.loads(done.stdout) if answer else None


RELOAD = """
import json, sys
import raw
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
question = [{"role": "user", "content": "What is 2 + 3?"}]
ids = tokenizer.apply_chat_template(
    question, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
out = model.generate(**ids, do_sample=False, max_new_tokens=24)[0, ids["input_ids"].shape[1]:]
assert "thumbwheel" not in sys.modules
answer = tokenizer.decode(out, skip_special_tokens=True)
print(json.dumps({"parameters": model.num_parameters(), "answer": answer}))
"""


def reload(folder: Path) -> Any:
    """Load the export with plain transformers, isolated from this checkout, and let it answer."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", RELOAD, str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"the export does not load: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def show(base: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """The table for a person."""
    print(
        f"\nbase: {base['parameters'] / 1e6:.1f}M parameters, {base['tokens']:,} tokens of text, "
        f"{base['steps']} steps, "
        f"loss {base['loss'][0]:.2f} -> {base['loss'][1]:.2f}, {base['seconds']} s\n"
    )
    what, figures = (
        f"{'agent':9}{'method':7}{'lines':>6}{'refused':>8}{'train/dev/gate':>18}",
        f"{'measure':46}{'before':>8}{'after':>8}",
    )
    print(f"{what}  {figures}  {'gain [95 %]':26}decision")
    for row in rows:
        split = "/".join(str(count) for count in row["rows"].values())
        imported = row["imported"]
        head = (
            f"{row['agent']:9}{row['method']:7}{imported['read']:>6}{imported['refused']:>8}"
            f"{split:>18}"
        )
        measures = {measure["name"]: measure for measure in (row["primary"], *row["preferences"])}
        for number, measure in enumerate(measures.values()):
            gain = f"{measure['gain']:+.3f} [{measure['low']:+.3f}, {measure['high']:+.3f}]"
            end = f"{row['decision']['verdict']} ({row['basis']})" if number == 0 else ""
            print(
                f"{head if number == 0 else '':48}  "
                f"{measure['name']:46}{measure['before']:8.3f}{measure['after']:8.3f}  "
                f"{gain:26}{end}"
            )
        if judge := row["reward_model"]:
            right = (
                f"{judge['accuracy']:.3f} [{judge['low']:.3f}, {judge['high']:.3f}] of "
                f"{judge['n']} dev answers judged right"
            )
            print(
                f"{'':50}reward model: {right}, {judge['majority']:.3f} by always saying the same"
            )
        parity = row["parity"]
        print(
            f"{'':50}export: KL {parity['mean_kl']:.1e}, top-1 {parity['top1']:.3f}; seconds: "
            f"{row['seconds']}"
        )


if __name__ == "__main__":
    main()
