"""Puts a run together: base, adapter, engine, method, rows as tokens. The child process and the dry
run both start here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from thumbwheel.core import log
from thumbwheel.core.config import build
from thumbwheel.core.errors import DataError
from thumbwheel.engine.lora import expert_weights_without_adapter
from thumbwheel.engine.ranks import Ranks
from thumbwheel.engine.refcache import RefCache
from thumbwheel.training.algorithm import (
    Algorithm,
    Method,
    MethodRunner,
    Parts,
    Prepared,
    SplitRows,
)
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.dev_budget import DevChoice, DevRow, choose
from thumbwheel.training.order import Order
from thumbwheel.training.replay import Replay
from thumbwheel.training.step import RecordedRunner
from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    from thumbwheel.engine.prompt import PromptBuilder
    from thumbwheel.engine.score import ScoreEngine
    from thumbwheel.engine.tree import Branch, Example
    from thumbwheel.models.template_settings import TemplateSettings
    from thumbwheel.training.online import OnlineAlgorithm

UNREAD_DEV_ROWS = "dev row left out, because evaluations would take more than eval_budget"
TEMPLATE_REFUSAL = "the chat template refuses"
"""Part of the reason of a row that the chat template refused (engine/render.py)."""
TEMPLATE_FIX = (
    "Change the roles of these rows (many templates want user and assistant in turn), or train a "
    "base whose chat template takes them; system messages: template.system in thumbwheel.yaml"
)


@dataclass
class Assembly:
    """Everything that a loop needs, ready to run."""

    config: TrainConfig
    """The settings, with `eval_steps` filled in."""
    method: Method[Any]
    builder: PromptBuilder
    model: Any
    engine: ScoreEngine
    runner: MethodRunner
    train: Prepared
    dev: Prepared
    """The rows of `dev_choice`."""
    dev_choice: DevChoice
    matched: list[str]
    dtype: str

    @property
    def order(self) -> Order:
        """The steps that the settings ask for."""
        return Order.of(len(self.train.items), self.config)

    @property
    def steps(self) -> int:
        """Optimiser steps."""
        return self.order.steps

    @cached_property
    def planned_tokens(self) -> float:
        """Tokens of all steps, prompts that answers share counted once; answers that the run writes
        itself are taken at full length."""
        order, kind = self.order, self.engine.layout.kind
        epoch_tokens = sum(example.rows(kind) for example in self.runner.examples(self.train.items))
        return epoch_tokens * order.steps / max(1, order.steps_an_epoch)

    @property
    def opening_notes(self) -> list[str]:
        """Sentences that the user has to read before the first step: about the chat template, and
        how much is evaluated."""
        notes = self._template_notes()
        if self.dev_choice.plan.evaluations:
            notes.append(self.dev_choice.plan.in_words())
        return notes

    def _template_notes(self) -> list[str]:
        notes = [f"note: {note}" for note in self.builder.notes]
        if refused := _refused(self.train):
            total = len(self.train.items) + self.train.dropped.total()
            notes.append(
                f"{refused} of {total} training rows are left out, because the chat template "
                f"refuses them. {TEMPLATE_FIX}"
            )
        return notes

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What is worth knowing about it, as JSON."""
        return {
            "train_rows": len(self.train.items),
            "dev_rows": len(self.dev.items),
            "evaluation": asdict(self.dev_choice.plan),
            "dropped": dict(self.train.dropped + self.dev.dropped),
            "notes": dict(self.train.notes + self.dev.notes),
            "matched_modules": len(self.matched),
            "not_adapted": expert_weights_without_adapter(self.model),
            "trainable_parameters": sum(
                parameter.numel()
                for parameter in self.model.parameters()
                if parameter.requires_grad
            ),
            "dtype": self.dtype,
            "learning_rate": self.config.learning_rate,
            "layout": str(self.engine.layout),
            "template": self.builder.template_name,
            "template_hash": self.builder.template_hash,
        }


def settings(algorithm: str, values: Mapping[str, Any]) -> TrainConfig:
    """Validate plain values as the settings of a method."""
    return build(ALGORITHMS.get(algorithm).Config, values, f"settings of {algorithm}")


def assemble(
    algorithm: str,
    config: TrainConfig,
    base: str,
    folder: Path,
    rows: Mapping[str, SplitRows],
    cache: Path,
    reward_model: Path | None = None,
    start: Path | None = None,
    checkers: Mapping[str, Mapping[str, Any]] | None = None,
    template: TemplateSettings | None = None,
    ranks: Ranks | None = None,
    dev_choice: DevChoice | None = None,
    is_trial: bool = False,
) -> Assembly:
    """Load the base from `folder` (`base` in the adapter's metadata), attach a new adapter or the
    one of `start`, and tokenise `rows`: the splits `train` and `dev`. `template` sets how the chat
    template is used. Each of several `ranks` assembles the same. A resumed run keeps its
    `dev_choice`. What a trial assembles is measured alone.

    Raises DataError when no training row is left, ModelError for a base, an adapter or targets that
    cannot be used, TrainingError for a base that is larger than the memory.
    """
    from thumbwheel.core.hardware import choose_dtype, device
    from thumbwheel.engine.load import count_parameters
    from thumbwheel.engine.reward_model import scorer_role_model
    from thumbwheel.engine.score import Role, ScoreEngine
    from thumbwheel.training.memory import refuse_weights

    where = device(config.device)
    parameters = count_parameters(str(folder))
    dtype: Any = (
        "float32" if config.tuning == "full" else choose_dtype(config.dtype, parameters, where)
    )
    refuse_weights(
        parameters,
        dtype if config.quantization == "none" else config.quantization,
        where,
        config.memory_limit_gb,
        ranks.world if ranks else 1,
    )
    method = ALGORITHMS.get(algorithm)(config)
    _require_renderable(folder, rows["train"], template)
    model, builder = _loaded(method, folder, dtype, where, template)
    adapted, matched = _adapted(model, config, base, start)
    train = method.prepare(rows["train"], builder)
    dev = method.prepare(rows["dev"], builder)
    if not train.items:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in train.dropped.items())
        raise DataError(
            f"{len(rows['train'])} training rows",
            f"none is left to train on: {reasons or 'there are none'}",
            TEMPLATE_FIX if _refused(train) else "See: thumbwheel dataset show",
        )
    engine = ScoreEngine(
        adapted if config.quantization != "none" else adapted.to(where),
        checkpointing=config.gradient_checkpointing,
        ranks=ranks,
    )
    if unadapted := expert_weights_without_adapter(adapted):
        log.say(
            f"no adapter is on the experts' weights {', '.join(unadapted)}; name them in "
            "lora_targets to train them too"
        )
    if method.produces_reward_model:
        engine.add(Role.REWARD, scorer_role_model(adapted))
    parts = Parts(engine, builder, cache, reward_model, checkers or {}, is_trial)
    steps = runner_of(method, parts)
    choice = dev_choice or _dev_choice(method, steps, train, dev)
    return Assembly(
        config=config.model_copy(update={"eval_steps": choice.plan.eval_steps}),
        method=method,
        builder=builder,
        model=adapted,
        engine=engine,
        runner=steps,
        train=train,
        dev=measured(dev, choice),
        dev_choice=choice,
        matched=matched,
        dtype=dtype,
    )


def _dev_choice(
    method: Method[Any], runner: MethodRunner, train: Prepared, dev: Prepared
) -> DevChoice:
    """Choose the dev rows that the run is evaluated on, and how often."""
    order = Order.of(len(train.items), method.config)
    pass_tokens = sum(
        _tokens(example, example.branches) for example in runner.examples(train.items)
    )
    # Methods that answer write one greedy answer to each dev prompt.
    answers = None if isinstance(method, Algorithm) else 1
    dev_rows = []
    for number, example in zip(dev.rows, runner.examples(dev.items), strict=True):
        tokens = _tokens(example, example.branches[:answers])
        dev_rows.append(DevRow(f"{number}:{example.group}", tokens))
    most_rows = getattr(method.config, "eval_prompts", len(dev_rows))
    return choose(method.config, order, pass_tokens, dev_rows, most_rows)


def _tokens(example: Example, branches: Sequence[Branch]) -> int:
    """Count prompt and answers, the prompt once: alike in every layout."""
    return len(example.prompt) + sum(len(branch.ids) for branch in branches)


def measured(dev: Prepared, choice: DevChoice) -> Prepared:
    """Return the dev rows of `choice`; `notes` counts the others."""
    if len(choice.chosen) == len(dev.items):
        return dev
    items = [dev.items[number] for number in choice.chosen]
    rows = [dev.rows[number] for number in choice.chosen]
    notes = dev.notes + Counter({UNREAD_DEV_ROWS: len(dev.items) - len(items)})
    return replace(dev, items=items, rows=rows, notes=notes)


def _require_renderable(folder: Path, rows: SplitRows, template: TemplateSettings | None) -> None:
    """Raise DataError if the chat template refuses every row. It runs before the weights are
    loaded, which takes minutes; the first row that renders is enough."""
    from thumbwheel.engine.load import load_tokenizer
    from thumbwheel.engine.prompt import PromptBuilder

    builder = PromptBuilder(load_tokenizer(str(folder)), settings=template)
    refused: Counter[str] = Counter()
    for row in rows:
        try:
            builder.render(row["prompt"], row.get("tools"))
        except DataError as error:
            if TEMPLATE_REFUSAL not in error.why:
                return
            refused[f"{error.what}: {error.why}"] += 1
        else:
            return
    if refused:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in refused.items())
        raise DataError(
            f"{len(rows)} training rows",
            f"none is left to train on: {reasons}",
            TEMPLATE_FIX,
        )


def _refused(prepared: Prepared) -> int:
    """Count the rows that the chat template refused."""
    return sum(count for reason, count in prepared.dropped.items() if TEMPLATE_REFUSAL in reason)


def runner_of(method: Method[Any], parts: Parts) -> MethodRunner:
    """Return the runner of the method: on recorded answers, or on fresh ones."""
    if isinstance(method, Algorithm):
        return RecordedRunner(
            parts.engine,
            method,
            RefCache(parts.cache),
            method.config.token_budget,
            _replay(method, parts),
        )
    from thumbwheel.training.online_step import (
        OnlineRunner,
    )  # with scipy and httpx2, 25 MB that recorded answers do not need

    return OnlineRunner(cast("OnlineAlgorithm[Any]", method), parts)


def _replay(method: Algorithm[Any], parts: Parts) -> Replay | None:
    """Return the replay that preserves the general skill of the base, or None without a replay
    weight and for a reward model, which answers nothing."""
    weight = method.config.replay_weight
    if not weight or method.produces_reward_model:
        return None
    folder = parts.cache.parent
    return Replay.of(parts.engine, parts.builder, weight, folder, is_trial=parts.is_trial)


def _loaded(
    method: Method[Any], folder: Path, dtype: Any, where: str, template: TemplateSettings | None
) -> tuple[Any, PromptBuilder]:
    """Load the base in the form that the method trains, and the builder of its token rows."""
    from thumbwheel.engine.load import load_base, load_scorer
    from thumbwheel.engine.prompt import PromptBuilder
    from thumbwheel.engine.reward_model import scorer_prompt_builder

    load_options: dict[str, Any] = {
        "local_only": True,
        "quantization": method.config.quantization,
        "device": where,
    }
    if method.produces_reward_model:
        seed = method.config.seed
        model, tokenizer = load_scorer(str(folder), dtype, seed=seed, **load_options)
        return model, scorer_prompt_builder(model, tokenizer, template)
    model, tokenizer = load_base(str(folder), dtype, **load_options)
    return model, PromptBuilder(tokenizer, settings=template)


def _adapted(
    model: Any, config: TrainConfig, base: str, start: Path | None
) -> tuple[Any, list[str]]:
    """Return (model with the adapter that trains, names of the adapted modules)."""
    from thumbwheel.engine.forward import is_scorer
    from thumbwheel.engine.load import (
        LoraSettings,
        adapted_modules,
        attach_full,
        attach_lora,
        load_adapter,
    )
    from thumbwheel.engine.lora import set_dropout
    from thumbwheel.engine.reward_model import start_from_adapter

    if config.tuning == "full":
        adapted, matched = attach_full(model)
    elif start is not None and not is_scorer(model):
        adapted = load_adapter(model, start, trainable=True)
        matched = adapted_modules(adapted)
    else:
        targets: Any = config.lora_targets
        if targets != "all-linear":
            targets = tuple(name.strip() for name in targets.split(","))
        lora = LoraSettings(
            rank=config.lora_r, alpha=config.lora_alpha, targets=targets, rslora=config.use_rslora
        )
        adapted, matched = attach_lora(model, lora, seed=config.seed)
        if start is not None:
            start_from_adapter(adapted, start)
    if config.lora_dropout and config.tuning == "lora":
        set_dropout(adapted, config.lora_dropout, config.seed)
    for adapter_config in adapted.peft_config.values():
        adapter_config.base_model_name_or_path = base
        # A set's order would give equal runs different files.
        adapter_config.target_modules = sorted(adapter_config.target_modules)
    return adapted, matched
