"""`ContinuousLearner` of the plan: stores feedback, and runs a training cycle whenever enough of it
is new.

Feedback is stored before anything is trained, and what a cycle learned from leaves the buffer only
when the cycle has succeeded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from threading import Lock
from typing import Any

from thumbwheel.compat.rlhf_plan.feedback import AGENT
from thumbwheel.compat.rlhf_plan.training import PPOAssistantTrainer, RewardModelTrainer
from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, ThumbwheelError

EPOCHS, QUERIES = 10, 16
"""Settings of the PPO in a cycle."""


class ContinuousLearner:
    """Trains a reward model and then the assistant after every `train_threshold` interactions; one
    cycle at a time.
    """

    def __init__(
        self,
        buffer_size: int = 1000,
        train_threshold: int = 100,
        *,
        reward_trainer: RewardModelTrainer | None = None,
        ppo_trainer: PPOAssistantTrainer | None = None,
    ) -> None:
        self.feedback_buffer: deque[dict[str, Any]] = deque(maxlen=buffer_size)
        self.train_threshold = train_threshold
        self.reward_trainer = reward_trainer or RewardModelTrainer()
        collector = self.reward_trainer.feedback_collector
        self.ppo_trainer = ppo_trainer or PPOAssistantTrainer(
            reward_model=self.reward_trainer.model,
            feedback_collector=collector,
        )
        self._cycle = Lock()
        self._new = 0

    @property
    def learning_active(self) -> bool:
        """Whether a cycle is running."""
        return self._cycle.locked()

    async def add_interaction(
        self,
        query: str,
        response: str,
        feedback: Mapping[str, Any],
    ) -> dict[str, Any] | None:
        """Store an interaction; with the last one of a threshold, run a cycle and return its
        metrics.

        `feedback` has feedback_type and what belongs to it, as `FeedbackCollector.collect` takes
        them. A cycle that fails is reported; its interactions stay for the next cycle.
        """
        self.reward_trainer.feedback_collector.collect(query, response, **feedback)
        interaction = {"query": query, "response": response, "feedback": dict(feedback)}
        self.feedback_buffer.append(interaction)
        self._new += 1
        if self._new < self.train_threshold or self.learning_active:
            return None
        try:
            return await self.trigger_training()
        except ThumbwheelError as error:
            log.say(f"the training cycle failed: {error}")
            return None

    async def trigger_training(self) -> dict[str, Any] | None:
        """Run a cycle now: reward model, PPO, evaluation. None where one is running already."""
        if not self._cycle.acquire(blocking=False):
            return None
        try:
            learned = list(self.feedback_buffer)
            self._new = 0
            await asyncio.to_thread(self.reward_trainer.train, num_epochs=1)
            await self.ppo_trainer.train(EPOCHS, QUERIES)
            metrics = await self.evaluate()
            for _ in range(min(len(learned), len(self.feedback_buffer))):
                self.feedback_buffer.popleft()
            return metrics
        finally:
            self._cycle.release()

    async def evaluate(self) -> dict[str, Any]:
        """Evaluate the trained assistant against its base on held-out queries. Raises Conflict
        before training.

        `average_reward` is what `RewardModel.predict_reward` gives, 0 to 1, by the queries and the
        judge of the first cycle (`yardstick`), so that cycles can be compared. After the first
        cycle that judge is the one that was optimised, which is no evidence: `thumbwheel evaluate`
        and the gate say whether an assistant is better.
        """
        return await asyncio.to_thread(self._evaluate)

    def _evaluate(self) -> dict[str, Any]:
        from thumbwheel.compat.rlhf_plan.yardstick import measure
        from thumbwheel.models import versions

        version = self.ppo_trainer.version
        if version is None:
            raise Conflict(
                "ContinuousLearner.evaluate",
                "no assistant has been trained",
                "Call trigger_training, and see its run's log",
            )
        with self.reward_trainer.feedback_collector.open() as ws:
            return measure(ws, versions.version(ws, AGENT, version)).to_dict()
