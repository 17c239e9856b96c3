"""Sentence embeddings by any encoder or language model: the mean of its last hidden states, of
length 1 (Reimers and Gurevych 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thumbwheel.engine.load import load_trunk

MAX_TOKENS = 512
"""Tokens of a text that are read."""
RESERVED = 2
"""Positions that some encoders do not give to tokens (RoBERTa)."""
DIGITS = 6
"""Decimals that are kept; the last ones depend on the machine."""


class Embedder:
    """`name` is a folder or a hub id; with `local_only` nothing is fetched for it. Raises
    ModelError for a model that cannot be loaded, MissingExtra without torch."""

    def __init__(self, name: str, *, local_only: bool = False) -> None:
        self.name = name
        self._model, self._tokenizer, self.fingerprint = load_trunk(name, local_only=local_only)
        positions = getattr(self._model.config, "max_position_embeddings", None)
        self._max_tokens = min(MAX_TOKENS, positions - RESERVED) if positions else MAX_TOKENS

    def about(self) -> dict[str, str]:
        """Return the fields that identify the model where its embeddings are used."""
        return {"model": self.name, "fingerprint": self.fingerprint}

    def embed(self, text: str) -> NDArray[np.float64]:
        """Return the embedding [d]; zeros for a text without tokens. It embeds one text at a time,
        so that no embedding depends on its neighbours."""
        import torch

        ids: list[Any] = self._tokenizer(text, truncation=True, max_length=self._max_tokens)[
            "input_ids"
        ]
        if not ids:
            return np.zeros(self._model.config.hidden_size)
        with torch.inference_mode():
            mean = self._model(input_ids=torch.tensor([ids])).last_hidden_state[0].double().mean(0)
        return np.asarray((mean / mean.norm().clamp_min(1e-12)).numpy().round(DIGITS))
