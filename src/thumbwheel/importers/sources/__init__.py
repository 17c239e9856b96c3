"""The sources that `import` and `plan` know. To add one: a file here, or in `published_benchmarks/`
where it reads what its authors published as a benchmark, and its line in SOURCES."""

from __future__ import annotations

from thumbwheel.core.plugins import VariantTable
from thumbwheel.importers.source import Source

SOURCES: VariantTable[Source] = VariantTable(
    "source",
    "thumbwheel.sources",
    {
        "jsonl": "thumbwheel.importers.sources.jsonl:SOURCE",
        "preference": "thumbwheel.importers.sources.preference:SOURCE",
        "ranked": "thumbwheel.importers.sources.ranked:SOURCE",
        "graded": "thumbwheel.importers.sources.published_benchmarks.graded:SOURCE",
        "openwebui": "thumbwheel.importers.sources.openwebui:SOURCE",
        "langfuse": "thumbwheel.importers.sources.langfuse:SOURCE",
        "openai": "thumbwheel.importers.sources.openai:SOURCE",
        "trl": "thumbwheel.importers.sources.trl:SOURCE",
        "alpaca": "thumbwheel.importers.sources.alpaca:SOURCE",
        "sharegpt": "thumbwheel.importers.sources.sharegpt:SOURCE",
        "otlp": "thumbwheel.importers.sources.otlp:OTLP",
        "openinference": "thumbwheel.importers.sources.otlp:OPENINFERENCE",
        "mlflow": "thumbwheel.importers.sources.mlflow:SOURCE",
        "phoenix": "thumbwheel.importers.sources.phoenix:SOURCE",
        "swe_agent": "thumbwheel.importers.sources.swe_agent:SOURCE",
        "huggingface": "thumbwheel.importers.sources.huggingface:SOURCE",
        "csv": "thumbwheel.importers.sources.columns:CSV",
        "parquet": "thumbwheel.importers.sources.columns:PARQUET",
        "table": "thumbwheel.importers.sources.columns:TABLE",
        "librechat": "thumbwheel.importers.sources.librechat:SOURCE",
        "call_log": "thumbwheel.importers.sources.call_log:SOURCE",
        "dataset_items": "thumbwheel.importers.sources.dataset_items:SOURCE",
        "argilla": "thumbwheel.importers.sources.argilla:SOURCE",
        "prodigy": "thumbwheel.importers.sources.prodigy:SOURCE",
        "gradio": "thumbwheel.importers.sources.gradio:SOURCE",
        "dify": "thumbwheel.importers.sources.dify:SOURCE",
        "tau": "thumbwheel.importers.sources.published_benchmarks.tau:SOURCE",
        "bfcl": "thumbwheel.importers.sources.published_benchmarks.bfcl:SOURCE",
        "mbpp": "thumbwheel.importers.sources.published_benchmarks.code_tasks:MBPP",
        "humaneval": "thumbwheel.importers.sources.published_benchmarks.code_tasks:HUMANEVAL",
        "llmfao": "thumbwheel.importers.sources.published_benchmarks.llmfao:SOURCE",
        "mt_bench": "thumbwheel.importers.sources.published_benchmarks.mt_bench:SOURCE",
    },
)
