"""Front doors of the systems that this one replaces, on its own verbs: their names and results, our evidence and our gate.

Lives here: calls that people have in their scripts (`TrainingPipeline`, `export_to_ollama`). Not here: anything that a verb of a stage
does not do already. What else they had is mapped to commands in docs/40-migrating.md.

    from thumbwheel.compat import TrainingPipeline

    results = TrainingPipeline("support", "Qwen/Qwen2.5-1.5B-Instruct", "kto").run_full_pipeline(deploy_ollama=True)
"""

from thumbwheel.compat.exporting import ExportResult, export_to_ollama
from thumbwheel.compat.pipeline import TrainingPipeline

__all__ = ["ExportResult", "TrainingPipeline", "export_to_ollama"]
