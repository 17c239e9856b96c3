"""The main task of each of the five systems as its user types it, there and here: the shell's
commands and the lines of a script.

What is here is run by test_system_tasks.py. `{url}`, `{base}` and `{folder}` are where
the test has its server, its base and its data; a script has `agent` (system 0) or `requests`
(system 1), as theirs would.
"""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Typed:
    """What somebody types: commands, one a line, and a script."""

    commands: str = ""
    script: str = ""

    def command_lines(self) -> list[str]:
        """Return each command on one line."""
        joined = self.commands.replace("\\\n", " ")
        return [" ".join(shlex.split(line)) for line in joined.splitlines() if line.strip()]

    def script_lines(self) -> int:
        """Return the lines of the script, however it is wrapped."""
        return len(ast.unparse(ast.parse(self.script)).splitlines())


@dataclass(frozen=True)
class SystemTask:
    system: int
    task: str
    original: Typed
    here: Typed


def with_imports_of(module: str, script: str) -> str:
    return script.replace("SYSTEM", module)


RECORD_AND_TRAIN = """
from SYSTEM import TraceCollector, hook_into_agent
collector = TraceCollector()
hook_into_agent(agent, collector)
from SYSTEM import TrainingPipeline
pipeline = TrainingPipeline(agent_name="isaa", base_model="{base}", method="grpo")
results = pipeline.run_full_pipeline(OPTIONS)
"""
CLIENT = """
for i in range(15):
    requests.post("{url}/api/policies/feedback/my_agent", json={{
        "prompt": f"Question {{i}}", "response": f"Answer {{i}}",
        "score": 0.5 + (i % 5) * 0.1, "runId": f"run_{{i}}"}})
estimate = requests.post(
    "{url}/api/policies/train_policy/my_agent", json={{"dryRun": True, "maxSteps": 1000}}).json()
result = requests.post(
    "{url}/api/policies/train_policy/my_agent", json={{"dryRun": False, "maxSteps": 1}}).json()
policies = requests.get("{url}/api/policies/my_agent").json()
"""
PLAN = """
from SYSTEM import ABTestingFramework, FeedbackCollector
from SYSTEM import PPOAssistantTrainer, RewardModel, RewardModelTrainer
collector = FeedbackCollector()
for i in range(40):
    kind = "thumbs_up" if i % 2 else "thumbs_down"
    collector.collect(f"Question {{i}}?", "Yes." if i % 2 else "No.", kind, user_id=f"u{{i}}")
trainer = RewardModelTrainer(MODEL)
trainer.train("models/reward_model", num_epochs=1)
ppo = PPOAssistantTrainer("{base}", trainer.model)
asyncio.run(ppo.train(num_epochs=1, queries_per_epoch=4))
test = ABTestingFramework()
test.record_metric(test.assign_variant("user_1"), "rating", 5)
results = test.analyze_results()
"""
MODEL_BEFORE = """trainer = RewardModelTrainer()
trainer.model = RewardModel("{base}")"""
TASKS = (
    SystemTask(
        0,
        "record runs, train, export",
        Typed(
            script=with_imports_of("toolboxv2.mods.isaa.base.rl", RECORD_AND_TRAIN).replace(
                "OPTIONS", "deploy_ollama=False"
            )
        ),
        Typed(
            script=with_imports_of("thumbwheel.compat.isaa", RECORD_AND_TRAIN).replace(
                "OPTIONS", "unproved=True"
            )
        ),
    ),
    SystemTask(
        1,
        "fifteen scores, dry run, training, list",
        Typed("uvicorn n3_server.main:app", CLIENT),
        Typed("thumbwheel serve --dialect n3", CLIENT),
    ),
    SystemTask(
        2,
        "rewards, rows, training, evaluation, export",
        Typed(
            """
python calculate_rewards.py --agent-type FILER
python export_training_data.py --agent-type FILER --output training/data/filer.jsonl
python train_filer.py --data training/data/filer.jsonl --output models/ocd-filer-v1 \
  --model {base}
python evaluate.py --model models/ocd-filer-v1 --test-data {folder}/test.jsonl \
  --agent-type FILER --output evaluation-results.json
python export_model.py --model models/ocd-filer-v1 --output models/exported --merge
"""
        ),
        Typed(
            """
thumbwheel import decisions {folder}/filer.jsonl --agent filer --agent-type FILER
thumbwheel import decisions {folder}/test.jsonl --agent filer --agent-type FILER --gold
thumbwheel train dpo --agent filer --base {base}
thumbwheel evaluate v1 --agent filer --suite json_agent --output evaluation-results.json
thumbwheel export v1 --agent filer --merge --to models/exported
"""
        ),
    ),
    SystemTask(
        3,
        "collect, reward model, PPO, A/B test",
        Typed(
            script=with_imports_of("app.rlhf", PLAN).replace(
                "trainer = RewardModelTrainer(MODEL)", MODEL_BEFORE
            )
        ),
        Typed(
            script=with_imports_of("thumbwheel.compat.rlhf_plan", PLAN).replace(
                "MODEL)", 'RewardModel("{base}"))'
            )
        ),
    ),
    SystemTask(
        4,
        "train on rated widgets, evaluate, export",
        Typed(
            """
python manage.py train_dpo --source file --data-file {folder}/exhaustive_data.json \
  --ratings-file {folder}/ratings.json
python manage.py evaluate_model --checkpoint ./rl_checkpoints/final --compare-base \
  --output results.json
python manage.py export_model --checkpoint ./rl_checkpoints/final \
  --model-name cc-widget-selector --quantization q8_0
"""
        ),
        Typed(
            """
thumbwheel import widgets {folder} --agent widgets
thumbwheel train dpo --agent widgets --base {base} --export --quant q8_0
thumbwheel evaluate v1 --agent widgets --suite preference --compare-base --output results.json
"""
        ),
    ),
)
