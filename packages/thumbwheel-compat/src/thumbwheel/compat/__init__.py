"""The systems that Thumbwheel replaces, one package each: their classes and functions by their
names, built on our own verbs, with our evidence and our gate.

`isaa` is an agent's RL pipeline, `n3` the RLHF of a server, `ocd` has decisions of five agents,
`rlhf_plan` feedback, PPO and A/B tests, and `command_center` rated widgets. All their names can be
imported from here; a name that several systems have is that of the first of them in this order.
What else they had is mapped to commands in docs/40-migrating.md.

    from thumbwheel.compat import TrainingPipeline

    pipeline = TrainingPipeline("support", "Qwen/Qwen2.5-1.5B-Instruct", method="kto")
    results = pipeline.run_full_pipeline(deploy_ollama=True)
"""

from typing import TYPE_CHECKING

from thumbwheel.compat import command_center, isaa, n3, ocd, rlhf_plan
from thumbwheel.compat.lazy import lazy

if TYPE_CHECKING:
    from thumbwheel.compat.command_center import *  # noqa: F403 - each package lists its names

    # isort: split
    from thumbwheel.compat.exporting import ExportResult, export_to_ollama  # type: ignore[assignment] # of a version, not of a folder

    # isort: split
    from thumbwheel.compat.rlhf_plan import *  # noqa: F403

    # isort: split
    from thumbwheel.compat.ocd import *  # noqa: F403

    # isort: split
    from thumbwheel.compat.n3 import *  # type: ignore[assignment]  # noqa: F403 - its RewardModel hides the plan's

    # isort: split
    from thumbwheel.compat.isaa import *  # type: ignore[assignment]  # noqa: F403 - after n3, whose TrainingConfig it hides

__all__ = ["ExportResult", "export_to_ollama"]
__all__ += isaa.__all__
__all__ += [name for name in n3.__all__ if name not in __all__]
__all__ += [name for name in ocd.__all__ if name not in __all__]
__all__ += [name for name in rlhf_plan.__all__ if name not in __all__]
__all__ += [name for name in command_center.__all__ if name not in __all__]

__getattr__ = lazy(__name__, ".exporting", ".isaa", ".n3", ".ocd", ".rlhf_plan", ".command_center")
