"""A whole turn of the wheel from Python; open it as a notebook, or run it.

thumbwheel demo --emit world
python notebook.py world
"""

# %% Open a home and bring the feedback in
from __future__ import annotations

import sys
from pathlib import Path

import thumbwheel

world = Path(sys.argv[1] if len(sys.argv) > 1 else "world")
home = thumbwheel.open("notebook-home")
filer = home.agent("filer")
for name in ("traces", "feedback"):
    report = filer.import_(world / f"{name}.jsonl")
    print(f"{name}: {report.stored} stored")
filer.import_(world / "gold.jsonl", gold=True)

# %% What does it permit?
plan = filer.plan()
print(plan.why)

# %% Freeze what a run learns from, and look at it
dataset = filer.build(method="sft")
print(dataset.to_pandas("train")[["prompt", "weight"]].head())

# %% Train, compare with the base on cases that nobody trained on, and let the gate decide
result = filer.train("sft", base=world / "base", dataset=dataset, max_steps=30)
evaluation = filer.evaluate(result.version or "latest")
before, after = evaluation.primary.before, evaluation.primary.after
print(f"{result.version}: {before:.1%} right before, {after:.1%} after")
print(filer.gate(evaluation).verdict)

# %% Close what is open
home.close()
