"""Agents that tell a collector what they do: every run its own trace, nothing mixed, nothing of the
agent changed."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thumbwheel.compat.isaa import TraceCollector, hook_into_agent
from thumbwheel.compat.isaa.hook import Hook
from thumbwheel.importers.source import Line
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.types import FeedbackRecord, TraceRecord


class First:
    """An agent of the first generation: positional arguments, lifetime counters, and it catches its
    own errors."""

    def __init__(self) -> None:
        self.total_tokens_in = self.total_tokens_out = self.total_llm_calls = 0
        self.total_cost_accumulated = 0.0
        self.active_session: str | None = None
        self.session_data: dict[str, Any] = {}

    async def a_run(
        self,
        query: str,
        session_id: str = "default",
        user_id: str | None = None,
        stream_callback: Any = None,
        remember: bool = True,
        **kwargs: Any,
    ) -> str:
        """Answer."""
        if query == "broken":
            answer = "I am sorry, something went wrong."
            reply = {
                "role": "assistant",
                "content": answer,
                "metadata": {"error": True, "error_type": "TimeoutError"},
            }
            self.session_data[session_id] = {"history": [reply]}
            return answer
        if query == "raise":
            raise LookupError("no such page")
        for turn in range(query.count("+")):
            await asyncio.sleep(0)
            await self.arun_function("add", query, turn=turn)
        self.total_tokens_in += 10
        self.total_tokens_out += 2
        self.total_cost_accumulated += 0.001
        self.total_llm_calls += 1
        return f"{query} for {user_id}"

    async def arun_function(self, function_name: str, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        if function_name == "fail":
            raise ValueError("bad input")
        return {"name": function_name, "args": args}


class Second:
    """An agent of the second generation: keyword functions, (text, context) on request, other
    counter names, other agents inside."""

    def __init__(self, inner: Any = None) -> None:
        self.total_tokens_in, self.total_cost, self.inner = 0, 0.0, inner

    async def a_run(
        self,
        query: str,
        session_id: str = "default",
        execution_id: str | None = None,
        get_ctx: bool = False,
        **kwargs: Any,
    ) -> Any:
        self.total_tokens_in += 5
        if self.inner is not None:
            await self.arun_function("before", query=query)
            await self.inner.a_run(f"inner {query}", session_id=f"in-{session_id}")
            await self.arun_function("after", query=query)
        if query == "wait":
            await asyncio.sleep(60)
        return (f"done {query}", {"ctx": 1}) if get_ctx else f"done {query}"

    async def arun_function(self, function_name: str, **kwargs: Any) -> Any:
        return kwargs


@pytest.fixture
def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TraceCollector:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))
    return TraceCollector(tmp_path / "traces")


def by_query(collector: TraceCollector) -> dict[str, Any]:
    return {trace.user_query: trace for trace in collector.load_traces()}


def test_a_run_of_either_generation(collector: TraceCollector) -> None:
    first_agent, second_agent = First(), Second()
    hook_into_agent(first_agent, collector)
    hook_into_agent(second_agent, collector)
    assert asyncio.run(first_agent.a_run("1+1", "s1", "ann")) == "1+1 for ann"
    assert asyncio.run(second_agent.a_run("x", session_id="s2", get_ctx=True)) == (
        "done x",
        {"ctx": 1},
    )
    traces = by_query(collector)
    first, second = traces["1+1"], traces["x"]
    assert (first.session_id, first.final_response, first.total_tokens_in, first.total_cost) == (
        "s1",
        "1+1 for ann",
        10,
        0.001,
    )
    (call,) = first.tool_calls
    assert (call.tool_name, call.arguments, call.success) == (
        "add",
        {"args": ["1+1"], "kwargs": {"turn": 0}},
        True,
    )
    assert call.duration_ms >= 0 and first.execution_duration_ms >= call.duration_ms
    assert (second.session_id, second.final_response) == ("s2", "done x")
    assert (
        second.total_tokens_in,
        second.total_tokens_out,
        second.total_cost,
        second.llm_calls_count,
    ) == (5, None, 0.0, None)


def test_defect_0c3_counters_are_of_the_run_not_of_the_lifetime(collector: TraceCollector) -> None:
    agent = First()
    agent.total_tokens_in = 1_000_000
    hook_into_agent(agent, collector)
    for query in ("a", "b", "c"):
        asyncio.run(agent.a_run(query))
    assert {trace.total_tokens_in for trace in collector.load_traces()} == {10}
    assert {trace.llm_calls_count for trace in collector.load_traces()} == {1}


def test_defect_0c3_what_overlapping_runs_used_is_nobodys_number(collector: TraceCollector) -> None:
    agent = First()
    hook_into_agent(agent, collector)

    async def both() -> None:
        await asyncio.gather(agent.a_run("a+", "s1"), agent.a_run("b++", "s2"))
        await agent.a_run("c", "s3")

    asyncio.run(both())
    traces = by_query(collector)
    assert [traces[query].total_tokens_in for query in ("a+", "b++", "c")] == [None, None, 10]
    assert [traces[query].total_cost for query in ("a+", "b++", "c")] == [None, None, 0.001]


def test_a_counter_that_is_set_back_or_raises_is_unknown(collector: TraceCollector) -> None:
    class Odd(First):
        @property
        def total_llm_calls(self) -> int:
            raise ZeroDivisionError

        @total_llm_calls.setter
        def total_llm_calls(self, value: int) -> None: ...

        async def a_run(self, query: str) -> str:  # type: ignore[override]
            self.total_tokens_in = 0
            return query

    agent = Odd()
    agent.total_tokens_in = 100
    hook_into_agent(agent, collector)
    asyncio.run(agent.a_run("q"))
    (trace,) = collector.load_traces()
    assert (trace.total_tokens_in, trace.llm_calls_count) == (None, None)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    plan=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 5), st.booleans()), min_size=2, max_size=40
    ),
    data=st.data(),
)
def test_defect_0c4_concurrent_sessions_and_nested_agents_never_mix(
    tmp_path_factory: Any, plan: list[Any], data: st.DataObject
) -> None:
    collector = TraceCollector(tmp_path_factory.mktemp("traces"))
    plain = First()
    nesting = Second(inner=plain)
    hook_into_agent(plain, collector)
    hook_into_agent(nesting, collector)
    runs = [
        ((nesting if nested else plain), f"q{number}" + "+" * pluses, f"s{session}")
        for number, (session, pluses, nested) in enumerate(plan)
    ]

    async def everything() -> None:
        await asyncio.gather(
            *(agent.a_run(query, session_id=session) for agent, query, session in runs)
        )

    asyncio.run(everything())
    traces = by_query(collector)
    assert len(traces) == sum(2 if agent is nesting else 1 for agent, _, _ in runs)
    for agent, query, session in runs:
        run_trace = traces[query]
        assert run_trace.session_id == session
        inner = traces[f"inner {query}"] if agent is nesting else run_trace
        if agent is nesting:
            assert [
                (call.tool_name, call.arguments["kwargs"]["query"]) for call in run_trace.tool_calls
            ] == [("before", query), ("after", query)]
            assert (
                inner.extra["parent_trace_id"] == run_trace.trace_id
                and inner.session_id == f"in-{session}"
            )
        else:
            assert "parent_trace_id" not in run_trace.extra
        assert [call.arguments["args"][0] for call in inner.tool_calls] == [
            inner.user_query
        ] * query.count("+")
        assert [call.arguments["kwargs"]["turn"] for call in inner.tool_calls] == list(
            range(query.count("+"))
        )


def test_a_function_that_an_inner_agent_calls_back_belongs_to_the_outer(
    collector: TraceCollector,
) -> None:
    class Inner(Second):
        outer: Any

        async def a_run(self, query: str, **kwargs: Any) -> str:
            await self.outer.arun_function("of_outer")
            await self.arun_function("of_inner")
            return query

    class Outer(Second):
        async def a_run(self, query: str, **kwargs: Any) -> str:
            return str(await self.inner.a_run(f"inner {query}"))

    inner = Inner()
    outer = inner.outer = Outer(inner)
    hook_into_agent(inner, collector)
    hook_into_agent(outer, collector)
    asyncio.run(outer.a_run("q"))
    traces = by_query(collector)
    assert [call.tool_name for call in traces["q"].tool_calls] == ["of_outer"]
    assert [call.tool_name for call in traces["inner q"].tool_calls] == ["of_inner"]


def test_a_task_that_outlives_its_run_writes_into_no_other(collector: TraceCollector) -> None:
    class Leaving(Second):
        async def a_run(self, query: str, **kwargs: Any) -> str:
            self.left = asyncio.create_task(self._late())
            return query

        async def _late(self) -> None:
            await asyncio.sleep(0.01)
            await self.arun_function("late")

    agent = Leaving()
    hook_into_agent(agent, collector)

    async def main() -> None:
        await agent.a_run("one")
        await agent.left

    asyncio.run(main())
    assert [trace.tool_calls for trace in collector.load_traces()] == [[]]


def test_threads_have_their_own_runs(collector: TraceCollector) -> None:
    agent = First()
    hook_into_agent(agent, collector)
    threads = [
        threading.Thread(target=lambda n=n: asyncio.run(agent.a_run(f"q{n}" + "+" * 20, f"s{n}")))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    traces = collector.load_traces()
    assert len(traces) == 8
    for trace in traces:
        assert [call.arguments["args"] for call in trace.tool_calls] == [[trace.user_query]] * 20


def test_defect_0c5_failures_are_seen_however_they_come(collector: TraceCollector) -> None:
    agent = First()
    hook_into_agent(agent, collector)
    assert asyncio.run(agent.a_run("broken", "s1")).startswith("I am sorry")
    with pytest.raises(LookupError, match="no such page"):
        asyncio.run(agent.a_run("raise"))

    waiting = Second()
    hook_into_agent(waiting, collector)

    async def cancelled() -> None:
        task = asyncio.create_task(waiting.a_run("wait"))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    traces = by_query(collector)
    assert traces["broken"].tasks_failed == [{"error": "TimeoutError", "type": "execution_error"}]
    assert traces["raise"].tasks_failed == [
        {"error": "LookupError: no such page", "type": "execution_error"}
    ]
    assert [traces[query].status for query in ("broken", "raise", "wait")] == [
        "error",
        "error",
        "cancelled",
    ]
    assert traces["wait"].final_response == ""


def test_the_caller_may_say_what_a_failure_is(collector: TraceCollector) -> None:
    agent = Second()
    hook_into_agent(agent, collector, failed=lambda result: "refused" if "bad" in result else None)
    asyncio.run(agent.a_run("bad"))
    asyncio.run(agent.a_run("fine"))
    assert {query: trace.status for query, trace in by_query(collector).items()} == {
        "bad": "error",
        "fine": "ok",
    }


def test_a_tool_that_raises_is_a_failed_call_and_raises_on(collector: TraceCollector) -> None:
    class Failing(First):
        async def a_run(self, query: str) -> str:  # type: ignore[override]
            try:
                await self.arun_function("fail", 1)
            except ValueError:
                return "caught"
            return "not raised"

    agent = Failing()
    hook_into_agent(agent, collector)
    assert asyncio.run(agent.a_run("q")) == "caught"
    (call,) = collector.load_traces()[0].tool_calls
    assert (call.success, call.error, call.result) == (False, "ValueError: bad input", "")


def test_defect_0c6_signature_kept_hooked_once_undone(
    collector: TraceCollector, tmp_path: Path
) -> None:
    agent = First()
    before = {name: inspect.signature(getattr(agent, name)) for name in ("a_run", "arun_function")}
    hook = hook_into_agent(agent, collector)
    assert hook_into_agent(agent, collector) is hook
    assert {name: inspect.signature(getattr(agent, name)) for name in before} == before
    assert inspect.iscoroutinefunction(agent.a_run) and agent.a_run.__doc__ == "Answer."
    assert asyncio.run(agent.a_run("q", "s", "bob", None, False, more=1)) == "q for bob"
    with pytest.raises(TypeError):
        asyncio.run(agent.a_run())  # type: ignore[call-arg]
    with pytest.raises(RuntimeError, match="another collector"):
        hook_into_agent(agent, TraceCollector(tmp_path / "other"))
    hook.unhook()
    hook.unhook()
    assert vars(agent).keys() == vars(First()).keys()
    assert agent.a_run.__func__ is First.a_run  # type: ignore[attr-defined]
    asyncio.run(agent.a_run("after"))
    assert "after" not in by_query(collector)
    with hook_into_agent(agent, collector):
        asyncio.run(agent.a_run("again"))
    assert "again" in by_query(collector)


def test_unhooking_leaves_what_others_wrapped_and_what_was_there_before(
    collector: TraceCollector,
) -> None:
    agent = First()
    hooked = agent.a_run
    agent.a_run = hooked  # type: ignore[method-assign]
    hook = hook_into_agent(agent, collector)
    ours = agent.a_run

    async def wrapper(*args: Any, **kwargs: Any) -> str:
        return "theirs " + await ours(*args, **kwargs)

    agent.arun_function, unwrapped = agent.arun_function, agent.arun_function  # type: ignore[method-assign]
    agent.a_run = wrapper  # type: ignore[method-assign, assignment]
    hook.unhook()
    assert agent.a_run is wrapper and agent.arun_function is not unwrapped
    assert asyncio.run(agent.a_run("q")) == "theirs q for None"
    assert collector.load_traces() == []
    agent.a_run = hooked  # type: ignore[method-assign]
    second = hook_into_agent(agent, collector)
    second.unhook()
    assert vars(agent)["a_run"] is hooked


def test_thinking_tools_become_reasoning_steps_and_tasks(collector: TraceCollector) -> None:
    class Thinking(First):
        async def a_run(self, query: str) -> str:  # type: ignore[override]
            think = self.arun_function
            await think(
                "internal_reasoning", "It is red.", 1, 2, True, "colour", ["red"], ["dark"], 0.75
            )
            await think(
                "outline_step_completion",
                step_completed=True,
                completion_evidence="seen",
                next_step_focus="taste",
            )
            await think(
                "delegate_to_llm_tool_node", task_description="look it up", tools_list=["search"]
            )
            await think(
                "manage_internal_task_stack",
                action="add",
                task_description="weigh it",
                outline_step_ref="t1",
            )
            await think(
                "manage_internal_task_stack",
                action="complete",
                task_description="weigh it",
                outline_step_ref="t1",
            )
            await think("manage_internal_task_stack", action="get_current")
            await think("search", "apple")
            return "apple"

    agent = Thinking()
    hook_into_agent(agent, collector)
    asyncio.run(agent.a_run("what fruit?"))
    (trace,) = collector.load_traces()
    assert [(step.step_type, step.content) for step in trace.reasoning_steps] == [
        ("internal_reasoning", "It is red."),
        ("outline_step", "seen\ntaste"),
        ("task_delegation", "look it up"),
    ]
    first = trace.reasoning_steps[0]
    assert (first.confidence, first.insights, first.issues) == (0.75, ["red"], ["dark"])
    assert trace.reasoning_steps[1].confidence is None
    assert [
        (task["task_id"], task["description"])
        for task in trace.tasks_created + trace.tasks_completed
    ] == [("t1", "weigh it")] * 2
    assert [call.tool_name for call in trace.tool_calls] == ["manage_internal_task_stack", "search"]


def test_recording_that_fails_costs_the_agent_nothing(
    collector: TraceCollector, tmp_path: Path
) -> None:
    agent = First()
    (tmp_path / "file").write_text("")
    broken = TraceCollector(tmp_path / "file" / "below")
    hook_into_agent(agent, broken)
    with pytest.warns(RuntimeWarning, match="not written"):
        assert asyncio.run(agent.a_run("q")) == "q for None"
    hook_into_agent(agent, broken).unhook()
    hook_into_agent(agent, collector)

    async def two() -> None:
        await agent.a_run("r+")
        assert collector.current() is None

    asyncio.run(two())
    assert "parent_trace_id" not in by_query(collector)["r+"].extra


def test_what_cannot_be_hooked_says_so(collector: TraceCollector) -> None:
    class Slotted:
        __slots__ = ()

        async def a_run(self, query: str) -> str:
            return query

    with pytest.raises(TypeError, match="neither a_run nor arun_function"):
        hook_into_agent(object(), collector)
    with pytest.raises(TypeError, match="takes no attributes"):
        hook_into_agent(Slotted(), collector)


def test_arguments_that_are_no_json_are_kept_as_text(collector: TraceCollector) -> None:
    class Odd(First):
        async def a_run(self, query: Any) -> Any:  # type: ignore[override]
            await self.arun_function("f", object, float("nan"), {1: {2}}, "\ud800\x00", 10**400)
            return None

    agent = Odd()
    hook_into_agent(agent, collector)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(agent.a_run(["multi", {"modal": b"x"}]))
    (path,) = collector.files()
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["tool_calls"][0]["arguments"]["args"][1:4] == ["nan", {"1": [2]}, "?\ufffd"]
    assert stored["final_response"] == ""


def test_a_hook_is_typed() -> None:
    assert isinstance(hook_into_agent(First(), TraceCollector("/nonexistent")), Hook)


def test_the_user_of_a_run_is_its_subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Agent:
        async def a_run(
            self,
            query: str,
            session_id: str = "default",
            user_id: str | None = None,
            **kwargs: Any,
        ) -> str:
            return "Nine to five."

    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))
    collector = TraceCollector(tmp_path / "traces", agent="desk")
    agent = Agent()
    with hook_into_agent(agent, collector):
        asyncio.run(agent.a_run("Hours?", "s1", user_id="ann"))
    items = list(SOURCES.get("flowagent").read(tmp_path / "traces", lambda position: None))
    (trace,) = [
        record
        for item in items
        if isinstance(item, Line)
        for record in item.records
        if not isinstance(record, FeedbackRecord)
    ]
    assert isinstance(trace, TraceRecord) and trace.subject == "ann"
    (spool,) = (tmp_path / "home" / "inbox").iterdir()
    spooled = json.loads(spool.read_text())
    assert spooled["subject"] == "ann"
