"""One measured run of TRL 1.16's DPO: `peer_trl.py MODEL PAIRS_FILE default|tuned STEPS PAIRS_A_STEP`; prints one JSON line.

`default` is DPOConfig as it comes. `tuned` is the best configuration found for these sizes on CPU: micro-batch 1 with accumulation, no
gradient checkpointing, weights in bf16.
"""

import json
import os
import resource
import sys
import time

os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer

model_path, pairs_file, kind, steps, pairs = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])


class Clock(TrainerCallback):
    """Seconds and loss of each optimiser step."""

    def __init__(self):
        self.seconds, self.losses = [], []

    def on_step_begin(self, *_, **__):
        """Start."""
        self.start = time.perf_counter()

    def on_step_end(self, *_, **__):
        """Stop."""
        self.seconds.append(time.perf_counter() - self.start)

    def on_log(self, args, state, control, logs=None, **__):
        """Keep the loss."""
        if logs and "loss" in logs:
            self.losses.append(logs["loss"])


torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "2")))
tuned = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": pairs, "gradient_checkpointing": False}
chosen = {"per_device_train_batch_size": pairs} if kind == "default" else tuned
args = DPOConfig(
    output_dir=os.environ["BENCH_OUT"],
    max_steps=steps,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    learning_rate=1e-4,
    lr_scheduler_type="constant",
    disable_tqdm=True,
    train_sampling_strategy="sequential",
    **chosen,
)
with open(pairs_file) as stream:
    rows = json.load(stream)[: steps * pairs]
clock = Clock()
trainer = DPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32 if kind == "default" else torch.bfloat16),
    args=args,
    train_dataset=Dataset.from_list(rows),
    processing_class=AutoTokenizer.from_pretrained(model_path),
    callbacks=[clock],
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
)
trainer.train()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print("RESULT " + json.dumps({"seconds": clock.seconds, "losses": clock.losses, "peak_bytes": peak}))
