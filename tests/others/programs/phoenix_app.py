"""An app that Phoenix traces by OpenInference, with its annotations. Runs in Phoenix's own
environment: URL PROJECT run FIRST LAST | rate TRACE SPAN. Prints what it logged."""

from __future__ import annotations

import json
import sys
import time

import httpx
from openinference.semconv.trace import SpanAttributes
from opentelemetry.trace import format_span_id, format_trace_id
from phoenix.client import Client
from phoenix.otel import register

HOURS = "Nine to five."


def wait_for_spans(url: str, project: str, count: int) -> None:
    """Phoenix writes what it was sent a little later, and refuses annotations until then."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        reply = httpx.get(f"{url}/v1/projects/{project}/spans", params={"limit": 1000}, timeout=60)
        if reply.status_code == 200 and len(reply.json()["data"]) >= count:
            return
        time.sleep(0.3)
    raise TimeoutError(f"Phoenix has not {count} spans")


def run(url: str, project: str, first: int, last: int) -> list[dict]:
    provider = register(
        endpoint=f"{url}/v1/traces", project_name=project, batch=False, verbose=False
    )
    tracer = provider.get_tracer("app")
    client = Client(http_client=httpx.Client(base_url=url, timeout=60))
    logged = []
    for number in range(first, last):
        with tracer.start_as_current_span("agent") as root:
            root.set_attribute(SpanAttributes.OPENINFERENCE_SPAN_KIND, "AGENT")
            root.set_attribute(SpanAttributes.INPUT_VALUE, f"Hours of shop {number}?")
            root.set_attribute(SpanAttributes.SESSION_ID, "session-1")
            root.set_attribute(SpanAttributes.USER_ID, f"user-{number}")
            with tracer.start_as_current_span("look_up") as tool:
                tool.set_attribute(SpanAttributes.OPENINFERENCE_SPAN_KIND, "TOOL")
                tool.set_attribute(SpanAttributes.INPUT_VALUE, "hours")
                tool.set_attribute(SpanAttributes.OUTPUT_VALUE, "9-5")
            with tracer.start_as_current_span("chat") as call:
                call.set_attribute(SpanAttributes.OPENINFERENCE_SPAN_KIND, "LLM")
                call.set_attribute(SpanAttributes.LLM_MODEL_NAME, "tiny")
                prefix = f"{SpanAttributes.LLM_INPUT_MESSAGES}.0.message"
                call.set_attribute(f"{prefix}.role", "user")
                call.set_attribute(f"{prefix}.content", f"Hours of shop {number}?")
                prefix = f"{SpanAttributes.LLM_OUTPUT_MESSAGES}.0.message"
                call.set_attribute(f"{prefix}.role", "assistant")
                call.set_attribute(f"{prefix}.content", HOURS)
                call.set_attribute(SpanAttributes.LLM_TOKEN_COUNT_PROMPT, 11)
            root.set_attribute(SpanAttributes.OUTPUT_VALUE, HOURS)
        ids = {
            name: format_span_id(span.get_span_context().span_id)
            for name, span in (("root", root), ("tool", tool), ("call", call))
        }
        trace = format_trace_id(root.get_span_context().trace_id)
        logged.append({"trace": trace, "thumb": number % 2 == 0, **ids})
    with tracer.start_as_current_span("embed") as other:
        other.set_attribute(SpanAttributes.OPENINFERENCE_SPAN_KIND, "EMBEDDING")
    provider.force_flush()
    wait_for_spans(url, project, 3 * len(logged) + 1)
    for entry in logged:
        client.spans.add_span_annotation(
            span_id=entry["root"],
            annotation_name="user_feedback",
            annotator_kind="HUMAN",
            label="thumbs-up" if entry["thumb"] else "thumbs-down",
            score=float(entry["thumb"]),
            explanation="seen",
            sync=True,
        )
        client.spans.add_span_annotation(
            span_id=entry["tool"],
            annotation_name="relevant",
            annotator_kind="LLM",
            label="yes",
            sync=True,
        )
    return logged


def main() -> None:
    url, project, verb, *arguments = sys.argv[1:]
    if verb == "run":
        logged = run(url, project, *map(int, arguments))
    else:
        trace, span = arguments
        client = Client(http_client=httpx.Client(base_url=url, timeout=60))
        client.spans.add_span_annotation(
            span_id=span, annotation_name="stars", annotator_kind="HUMAN", score=5, sync=True
        )
        client.traces.add_trace_annotation(
            trace_id=trace, annotation_name="quality", annotator_kind="CODE", score=0.5, sync=True
        )
        logged = []
    print(json.dumps(logged))


main()
