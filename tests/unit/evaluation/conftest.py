"""The taught model, and homes that judge it."""

import pytest

from tests.models.tiny_models import record, tiny_base
from tests.worlds.feedback_world import AGENT
from tests.worlds.taught_world import PLACES, SPLIT, Taught, learn, world_of
from thumbwheel.datasets.build import build
from thumbwheel.db import schema
from thumbwheel.models import versions


@pytest.fixture(scope="session")
def taught(tmp_path_factory):
    import torch

    from thumbwheel.engine.load import LoraSettings, attach_lora, load_base
    from thumbwheel.engine.prompt import PromptBuilder

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("taught")
    base = tiny_base(
        folder / "base", hidden_size=48, head_dim=12, intermediate_size=96, initializer_range=0.1
    )
    model, tokenizer = load_base(str(base), "float32")
    builder = PromptBuilder(tokenizer)
    rows = [
        builder.row([{"role": "user", "content": f"{word} {number}"}], text)
        for number in range(3, 150, 7)
        for word, text in PLACES.items()
    ]
    adapted, _ = attach_lora(model, LoraSettings(rank=16), seed=0)
    adapted.save_pretrained(folder / "zero")
    learn(adapted, rows, 100)
    adapted.save_pretrained(folder / "good")
    return Taught(base, folder / "good", folder / "zero")


@pytest.fixture
def home_with_feedback(tmp_path, taught):
    """Builds a home: `home(shapes=..., **world)` gives (workspace, add) where `add("good")` makes a
    candidate of an adapter."""
    opened = []

    def make(shapes=("pairs", "labels"), change=None, split=SPLIT, **world):
        new_world = world_of(**world)
        if change:
            change(new_world)
        ws = new_world.into(tmp_path / f"home{len(opened)}")
        opened.append(ws)
        datasets = [build(ws, AGENT, shape, split) for shape in shapes]

        def add(adapter, dataset=0):
            from thumbwheel.engine.load import base_fingerprint

            parent = versions.ensure_base(
                ws, AGENT, str(taught.base), base_fingerprint(taught.base)
            )
            run = record(
                ws,
                schema.runs,
                AGENT,
                algorithm="dpo",
                dataset_id=datasets[dataset].id,
                base=str(taught.base),
                state="finished",
            )
            return versions.add_candidate(ws, parent, run, getattr(taught, adapter)).name

        return ws, add

    yield make
    for ws in opened:
        ws.db.close()
