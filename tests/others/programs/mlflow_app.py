"""An app that MLflow traces, with its feedback. Runs in MLflow's own environment: URL EXPERIMENT
run FIRST LAST | rate TRACE. Prints what it logged."""

from __future__ import annotations

import json
import sys

import mlflow
from mlflow.entities import AssessmentSource, SpanType

HOURS = "Nine to five."


@mlflow.trace(span_type=SpanType.TOOL)
def look_up(topic: str) -> dict[str, str]:
    return {"hours": "9-5"}


@mlflow.trace(span_type=SpanType.CHAT_MODEL)
def chat_model(messages: list[dict[str, str]], model: str, temperature: float) -> dict:
    usage = {"input_tokens": 11, "output_tokens": 4, "total_tokens": 15}
    mlflow.get_current_active_span().set_attribute("mlflow.chat.tokenUsage", usage)
    message = {"role": "assistant", "content": HOURS}
    return {"choices": [{"message": message, "finish_reason": "stop"}]}


@mlflow.trace(span_type=SpanType.AGENT)
def agent(question: str, number: int) -> str:
    session = {"mlflow.trace.user": f"user-{number}", "mlflow.trace.session": "session-1"}
    mlflow.update_current_trace(metadata=session)
    look_up("hours")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": question},
    ]
    reply = chat_model(messages, model="tiny", temperature=0.2)
    return reply["choices"][0]["message"]["content"]


@mlflow.trace(span_type=SpanType.EMBEDDING)
def embed(text: str) -> list[float]:
    return [0.5]


def person() -> AssessmentSource:
    return AssessmentSource("HUMAN", "ann")


def run(first: int, last: int) -> list[dict]:
    logged = []
    for number in range(first, last):
        agent(f"Hours of shop {number}?", number)
        trace_id = mlflow.get_last_active_trace_id()
        mlflow.flush_trace_async_logging()
        thumb = number % 2 == 0
        mlflow.log_feedback(
            trace_id=trace_id,
            name="user_feedback",
            value=thumb,
            source=person(),
            rationale="seen",
        )
        judge = AssessmentSource("LLM_JUDGE", "judge-1")
        mlflow.log_feedback(trace_id=trace_id, name="toxicity", value=0.125, source=judge)
        if not thumb:
            mlflow.log_expectation(
                trace_id=trace_id, name="expected_response", value="9 to 5.", source=person()
            )
        logged.append({"trace": trace_id, "thumb": thumb})
    return logged


def main() -> None:
    url, experiment, verb, *arguments = sys.argv[1:]
    mlflow.set_tracking_uri(url)
    mlflow.set_experiment(experiment)
    if verb == "run":
        first, last = map(int, arguments)
        logged = run(first, last)
        embed("no model is asked")
        mlflow.flush_trace_async_logging()
    else:
        (trace_id,) = arguments
        mlflow.log_feedback(trace_id=trace_id, name="stars", value=5, source=person())
        logged = []
    mlflow.flush_trace_async_logging(terminate=True)
    print(json.dumps(logged))


main()
