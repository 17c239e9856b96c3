"""Traces of OpenTelemetry: from spans, in whatever convention their attributes are written, to our
traces with their steps and feedback.

`span.py` reads spans from OTLP (JSON and protobuf) and from what SDKs write into files;
`conventions.py` says by what names the conventions call a thing; `messages.py` reads chats in their
spellings; `assemble.py` makes a trace of the spans of one run; `evaluations.py` makes feedback of
evaluation results.
"""
