"""`TorchModule`: what scripts do with a module of torch, for classes that are imported where no
torch is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import torch


class TorchModule:
    """Stands for named modules of torch; calling it is `forward`."""

    def __init__(self, **parts: Any) -> None:
        from torch import nn

        self.module = nn.ModuleDict(parts)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.forward(*arguments, **options)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Compute the output; a subclass implements it."""
        raise NotImplementedError

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return self.module.parameters()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the weights by name."""
        return dict(self.module.state_dict())

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take these weights; raises RuntimeError where names or shapes differ."""
        self.module.load_state_dict(state)

    def to(self, device: str) -> Self:
        self.module.to(device)
        return self

    def train(self, mode: bool = True) -> Self:
        self.module.train(mode)
        return self

    def eval(self) -> Self:
        return self.train(False)
