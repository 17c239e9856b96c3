"""A run while it happens: as a block, as a decorator, sync and async, nested."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import thumbwheel


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path))
    return tmp_path / "inbox"


def recorded(inbox: Path) -> dict[str, dict[str, Any]]:
    """Trace lines by their output."""
    texts = [path.read_text() for path in sorted(inbox.glob("spool-*"))]
    lines = [json.loads(line) for line in "".join(texts).splitlines()]
    return {line.get("output", ""): line for line in lines if line["type"] == "trace"}


def test_a_block_is_recorded_at_its_end(inbox: Path) -> None:
    with thumbwheel.trace("support", input="hi", session="s1", tags="x", model="m1") as run:
        assert not inbox.exists()
        run.step("tool", name="search", input={"q": "hi"}, output="nothing")
        run.output, run.model = "ho", "m2"
        run.metadata["language"] = "en"
    line = recorded(inbox)["ho"]
    assert line.pop("occurred_at") and line.pop("id") == run.id
    assert line == {
        "agent": "support",
        "type": "trace",
        "input": [{"role": "user", "content": "hi"}],
        "output": "ho",
        "session": "s1",
        "tags": "x",
        "model": "m2",
        "metadata": {"language": "en"},
        "steps": [{"kind": "tool", "name": "search", "input": {"q": "hi"}, "output": "nothing"}],
    }


def test_an_exception_is_the_status_and_goes_on(inbox: Path) -> None:
    with pytest.raises(LookupError), thumbwheel.trace("a", input="hi") as run:
        run.output = "half"
        raise LookupError("no such order")
    line = recorded(inbox)["half"]
    assert (line["status"], line["metadata"]) == (
        "error",
        {"error": "LookupError('no such order')"},
    )


def test_a_cancelled_task_is_recorded_as_cancelled(inbox: Path) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def work() -> None:
            async with thumbwheel.trace("a", input="hi") as run:
                run.output = "half"
                begun.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert recorded(inbox)["half"]["status"] == "cancelled"


@pytest.mark.parametrize("is_shut_down", [False, True])
def test_an_async_block_needs_none_of_the_threads_of_the_app(
    inbox: Path, is_shut_down: bool
) -> None:
    leave = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        if is_shut_down:
            await loop.shutdown_default_executor()
        else:
            # more than the loop has threads
            for _ in range(40):
                loop.run_in_executor(None, leave.wait)
        try:
            async with asyncio.timeout(60), thumbwheel.trace("a", input="x") as run:
                run.output = "y"
        finally:
            leave.set()

    asyncio.run(main())
    assert recorded(inbox).keys() == {"y"}


def test_a_decorated_function_is_recorded_at_every_call(inbox: Path) -> None:
    @thumbwheel.trace("support", model="m1")
    def answer(question: str, tone: str = "kind") -> str:
        """Answer."""
        return f"{question}!"

    assert (answer.__name__, answer.__doc__) == ("answer", "Answer.")
    assert [answer("a"), answer("b", tone="stern")] == ["a!", "b!"]
    lines = recorded(inbox)
    assert lines["a!"]["input"] == [{"role": "user", "content": "a"}]
    assert lines["a!"]["id"] != lines["b!"]["id"]
    assert lines["b!"]["model"] == "m1"


def test_a_decorated_method_and_what_is_no_text(inbox: Path) -> None:
    class Adder:
        @thumbwheel.trace("adder")
        def add(self, first: int, second: int) -> dict[str, int]:
            return {"sum": first + second}

        @thumbwheel.trace("adder")
        def chat(self, messages: list[dict[str, str]]) -> str:
            return "four"

    assert Adder().add(2, second=2) == {"sum": 4}
    assert Adder().chat([{"role": "system", "content": "Add."}]) == "four"
    lines = recorded(inbox)
    assert lines['{"sum": 4}']["input"][0]["content"] == '{"first": 2, "second": 2}'
    assert lines["four"]["input"] == [{"role": "system", "content": "Add."}]


def test_traces_nest_by_context(inbox: Path) -> None:
    @thumbwheel.trace("support")
    async def inner(question: str) -> str:
        await asyncio.sleep(0.01)
        return f"inner {question}"

    async def outer(name: str) -> str:
        async with thumbwheel.trace("support", input=name, session=name, subject="ann") as run:
            await asyncio.gather(inner(f"{name}1"), inner(f"{name}2"))
            thumbwheel.trace("support", input="now", output=f"now {name}")
            run.output = f"outer {name}"
            return run.id

    async def main() -> list[str]:
        return await asyncio.gather(outer("x"), outer("y"))

    ids = dict(zip("xy", asyncio.run(main()), strict=True))
    lines = recorded(inbox)
    for name, trace_id in ids.items():
        for output in (f"inner {name}1", f"inner {name}2", f"now {name}"):
            line = lines[output]
            assert (line["parent"], line["session"], line["subject"]) == (trace_id, name, "ann")
        assert "parent" not in lines[f"outer {name}"]


def test_a_trace_of_another_agent_inside_only_remembers_where_it_was(inbox: Path) -> None:
    with thumbwheel.trace("boss", input="hi", session="s") as run:
        thumbwheel.trace("helper", input="x", output="y")
        run.output = "z"
    line = recorded(inbox)["y"]
    assert "parent" not in line and line["session"] == "s"
    assert line["metadata"] == {"parent_agent": "boss", "parent_trace": run.id}


def test_threads_have_runs_of_their_own(inbox: Path) -> None:
    with thumbwheel.trace("a", input="outer") as run:
        thread = threading.Thread(
            target=thumbwheel.trace, args=("a",), kwargs={"input": "x", "output": "thread"}
        )
        thread.start()
        thread.join()
        run.output = "outer"
    assert "parent" not in recorded(inbox)["thread"]


def test_what_cannot_be_recorded_costs_the_app_nothing(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(RuntimeWarning, match="nobody said its input"), thumbwheel.trace("a"):
        pass
    with thumbwheel.trace("a", input="hi") as run:
        run.output = {"odd": object, "nan": float("nan"), "half": "\ud800"}
    assert len(recorded(inbox)) == 1
    monkeypatch.setenv("THUMBWHEEL_URL", "no address")
    with pytest.warns(RuntimeWarning, match="no address"), thumbwheel.trace("a", input="hi"):
        pass
    monkeypatch.delenv("THUMBWHEEL_URL")
    monkeypatch.setenv("THUMBWHEEL_HOME", "/dev/full/home")

    @thumbwheel.trace("a")
    def answer(question: str) -> str:
        return "ho"

    with pytest.warns(RuntimeWarning, match="not recorded"):
        assert answer("hi") == "ho"


def test_misuse_is_told_at_the_call(inbox: Path) -> None:
    with pytest.raises(TypeError, match="generator"):

        @thumbwheel.trace("a")
        def stream(question: str) -> Any:
            yield question

    with pytest.raises(TypeError, match="input too"):
        thumbwheel.trace("a", output="y")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="neither a letter"):
        thumbwheel.trace("?!")
    run = thumbwheel.trace("a", input="x")
    with run:
        run.output = "y"
    with pytest.raises(RuntimeError, match="begun already"), run:
        pass

    @thumbwheel.trace("a")
    def answer(question: str) -> str:
        return question

    with pytest.raises(TypeError, match="question"):
        answer()  # type: ignore[call-arg]
