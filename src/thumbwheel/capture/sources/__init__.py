"""The sources that `import` and `plan` know. To add one: a file here, or in `published_benchmarks/`
where it reads what its authors published as a benchmark, and its line in SOURCES."""

from __future__ import annotations

from thumbwheel.capture.source import Source
from thumbwheel.core.plugins import VariantTable

SOURCES: VariantTable[Source] = VariantTable(
    "source",
    "thumbwheel.sources",
    {
        "jsonl": "thumbwheel.capture.sources.jsonl:SOURCE",
        "preference": "thumbwheel.capture.sources.preference:SOURCE",
        "ranked": "thumbwheel.capture.sources.ranked:SOURCE",
        "graded": "thumbwheel.capture.sources.published_benchmarks.graded:SOURCE",
        "openwebui": "thumbwheel.capture.sources.openwebui:SOURCE",
        "langfuse": "thumbwheel.capture.sources.langfuse:SOURCE",
        "openai": "thumbwheel.capture.sources.openai:SOURCE",
        "trl": "thumbwheel.capture.sources.trl:SOURCE",
        "alpaca": "thumbwheel.capture.sources.alpaca:SOURCE",
        "sharegpt": "thumbwheel.capture.sources.sharegpt:SOURCE",
        "otlp": "thumbwheel.capture.sources.otlp:OTLP",
        "openinference": "thumbwheel.capture.sources.otlp:OPENINFERENCE",
        "mlflow": "thumbwheel.capture.sources.mlflow:SOURCE",
        "phoenix": "thumbwheel.capture.sources.phoenix:SOURCE",
        "swe_agent": "thumbwheel.capture.sources.swe_agent:SOURCE",
        "huggingface": "thumbwheel.capture.sources.huggingface:SOURCE",
        "csv": "thumbwheel.capture.sources.columns:CSV",
        "parquet": "thumbwheel.capture.sources.columns:PARQUET",
        "table": "thumbwheel.capture.sources.columns:TABLE",
        "librechat": "thumbwheel.capture.sources.librechat:SOURCE",
        "call_log": "thumbwheel.capture.sources.call_log:SOURCE",
        "dataset_items": "thumbwheel.capture.sources.dataset_items:SOURCE",
        "argilla": "thumbwheel.capture.sources.argilla:SOURCE",
        "prodigy": "thumbwheel.capture.sources.prodigy:SOURCE",
        "gradio": "thumbwheel.capture.sources.gradio:SOURCE",
        "dify": "thumbwheel.capture.sources.dify:SOURCE",
        "tau": "thumbwheel.capture.sources.published_benchmarks.tau:SOURCE",
        "bfcl": "thumbwheel.capture.sources.published_benchmarks.bfcl:SOURCE",
        "mbpp": "thumbwheel.capture.sources.published_benchmarks.code_tasks:MBPP",
        "humaneval": "thumbwheel.capture.sources.published_benchmarks.code_tasks:HUMANEVAL",
        "llmfao": "thumbwheel.capture.sources.published_benchmarks.llmfao:SOURCE",
        "mt_bench": "thumbwheel.capture.sources.published_benchmarks.mt_bench:SOURCE",
    },
)
