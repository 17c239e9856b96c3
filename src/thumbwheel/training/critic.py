"""The critic of an actor-critic method: a value head on the policy's own trunk, or an adapter and a
head of its own on the frozen base."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ModelError
from thumbwheel.core.log import say
from thumbwheel.engine.score import Role, RoleModel, ScoreEngine
from thumbwheel.training.returns import Moments

if TYPE_CHECKING:
    import torch

NAME = "critic"


def shared(engine: ScoreEngine) -> RoleModel:
    """Return a critic that is a head of zeros on the policy's trunk: it halves the cost of an
    update, but value errors also move the policy's adapter."""
    return RoleModel(engine.role_model(Role.POLICY).adapter, _head(engine))


def separate(engine: ScoreEngine, reward_model: Path | None, seed: int) -> RoleModel:
    """Return a critic with its own adapter: the reward model's with its head if that fits the base,
    else a new one with a head of zeros."""
    mounted = _mounted(engine, reward_model)
    if mounted is None:
        _attach(engine.model, engine.role_model(Role.POLICY).adapter, seed)
    head = _head(engine)
    if mounted is not None:
        head.weight.data.copy_(mounted.head.weight.data)
    return RoleModel(NAME, head)


def rescale(role_model: RoleModel, current: Moments, target: Moments) -> None:
    """Rescale a head whose scores have the moments `current`, so that they have those of
    `target`."""
    factor = target.deviation / current.deviation
    role_model.head.weight.data.mul_(factor)
    role_model.head.bias.data.sub_(current.mean).mul_(factor).add_(target.mean)


def train(parameters: list[torch.nn.Parameter]) -> None:
    """Make these parameters trainable, as fp32 masters whatever the base."""
    for parameter in parameters:
        if parameter.dtype.itemsize < 4:
            parameter.data = parameter.data.float()
        parameter.requires_grad_(True)


def _mounted(engine: ScoreEngine, reward_model: Path | None) -> RoleModel | None:
    if reward_model is None:
        return None
    from thumbwheel.engine.reward_model import mount

    role_model = mount(engine, reward_model, NAME)
    if role_model is None:
        say("the critic starts from the base: the reward model is no decoder over the same base")
    return role_model


def _attach(model: Any, like: str | None, seed: int) -> None:
    import torch

    from thumbwheel.engine.load import quiet_transformers

    if like is None:
        raise ModelError(
            "a critic with an adapter of its own",
            "the policy has no adapter",
            "Take critic: shared, or train with LoRA",
        )
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        model.add_adapter(NAME, deepcopy(model.peft_config[like]))


def _head(engine: ScoreEngine) -> torch.nn.Linear:
    import torch

    from thumbwheel.engine.head import wide

    config = engine.language_model.config.get_text_config()
    dtype = wide(next(engine.language_model.parameters()))
    head = torch.nn.Linear(config.hidden_size, 1, dtype=dtype, device=engine.device)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    return head
