"""The escape battery: what a candidate tries against the host, against others and against its
limits."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys

import psutil
import pytest

from tests.waiting import until
from thumbwheel.sandbox import canaries, cgroup
from thumbwheel.sandbox.pool import Pool
from thumbwheel.sandbox.types import Level, SandboxJob, SandboxOutcome
from unit.sandbox.conftest import LIMITS
from unit.sandbox.programs import ENDS, SAY_DONE, SAY_DONE_SHELL, SHELL, SURVIVORS, TIMES

pytestmark = pytest.mark.xdist_group("sandbox")


def run_code(pool: Pool, code: str, language: str = "python"):
    return pool.run([SandboxJob(code, language)])[0]


def processes_within(pool: Pool) -> list[str]:
    """Everything that lives in the pool's sandboxes, besides bubblewrap and the parent that forks;
    other tests leave helpers outside."""
    processes = []
    outer = [
        child for child in psutil.Process().children(recursive=True) if child.name() == "bwrap"
    ]
    for child in {inner for sandbox in outer for inner in sandbox.children(recursive=True)}:
        words = child.cmdline() if child.status() != psutil.STATUS_ZOMBIE else []
        if words and not words[0].endswith("bwrap") and "inside.zygote" not in " ".join(words):
            processes.append(" ".join(words))
    return processes


@pytest.mark.parametrize(
    "name",
    [
        *canaries.ATTACKS,
        *canaries.OWN_VERDICTS,
        *canaries.OWN_ENDS,
        "memory of many processes together",
    ],
)
def test_an_attack_fails(report, name):
    if name not in report.attacks and report.level is Level.LIMITED:
        assert (
            report.reason
        )  # says why there is no cgroup; processes times memory is bounded instead
        return
    assert report.attacks[name] == "held"


@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_as_it_ends_and_the_next_one_runs(pool, name):
    code, state = ENDS[name]
    assert run_code(pool, code).state is state
    assert run_code(pool, "print('next')").output == "next\n"


def test_a_call_of_the_other_word_size_kills(pool):
    if platform.machine() != "x86_64":
        pytest.skip("x32 is of x86_64")
    assert (
        run_code(pool, "import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39)").state
        is SandboxOutcome.DIED
    )


def short(report) -> Pool:
    return Pool(
        LIMITS.model_copy(update={"wall_seconds": 1.5, "cpu_seconds": 1}),
        workers=1,
        level=report.level,
    )


@pytest.mark.parametrize("name", TIMES)
def test_time_ends_it_and_everything_that_it_started(report, name):
    pool = short(report)
    try:
        result = run_code(pool, TIMES[name])
        assert result.state in (SandboxOutcome.TIMEOUT, SandboxOutcome.MEMORY, SandboxOutcome.DIED)
        assert len(result.output) <= LIMITS.output_kb * 1024
        assert run_code(pool, "print('next')").output == "next\n"
        assert not processes_within(pool)
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("name", "language"),
    [*((name, "python") for name in SAY_DONE), *((name, "shell") for name in SAY_DONE_SHELL)],
)
def test_a_program_without_tests_cannot_say_that_it_is_done(pool, name, language):
    code = SAY_DONE[name] if language == "python" else SAY_DONE_SHELL[name]
    result = run_code(pool, code, language)
    assert result.state in (
        SandboxOutcome.DIED,
        SandboxOutcome.LEFT,
        SandboxOutcome.LIED,
        SandboxOutcome.RAISED,
    ), result
    assert run_code(pool, "print(1)").state is SandboxOutcome.DONE


@pytest.mark.parametrize("name", SURVIVORS)
def test_nothing_survives_from_one_program_to_the_next(pool, name):
    first, second = SURVIVORS[name]
    assert run_code(pool, first).state in (
        SandboxOutcome.DONE,
        SandboxOutcome.LIED,
    )  # LIED: it broke its own answers
    result = run_code(pool, second)
    assert (result.state, result.detail) == (SandboxOutcome.DONE, "")
    assert not processes_within(pool)


@pytest.mark.parametrize("name", SHELL)
def test_scripts(pool, name):
    code, state, output = SHELL[name]
    result = run_code(pool, code, "shell")
    assert result.state is state
    assert output is None or result.output == output
    assert not processes_within(pool)


def test_what_is_printed_is_kept_up_to_the_limit_and_with_all_bytes(pool):
    flood = run_code(pool, "import sys; sys.stdout.write('x' * 10**7)")
    assert flood.state is SandboxOutcome.DONE
    assert len(flood.output) == LIMITS.output_kb * 1024
    assert run_code(pool, "import os; os.write(1, b'a\\0\\xff')").output == "a\0\ufffd"


def test_bubblewrap_is_started_without_environment_or_paths_of_the_host(pool, monkeypatch):
    run_code(pool, "1")
    outer = [
        child for child in psutil.Process().children(recursive=True) if child.name() == "bwrap"
    ]
    assert outer
    for child in outer:
        with open(f"/proc/{child.pid}/cmdline", "rb") as file:
            words = file.read()
        assert b"thumbwheel" not in words and os.getcwd().encode() not in words
        if os.geteuid() == 0:
            with open(f"/proc/{child.pid}/environ", "rb") as file:
                assert file.read() == b""
            assert child.uids().effective != 0  # for root the limit of processes does nothing


def test_limits_of_the_cgroup_are_read_back_and_it_is_removed(report):
    if report.level is not Level.STANDARD:
        pytest.skip(f"no cgroup: {report.reason}")
    pool = Pool(LIMITS, workers=1, level=report.level)
    run_code(pool, "1")
    group = pool._idle.queue[0]._sandboxes["candidate"].group
    held = {
        file.name: file.read_text().strip()
        for folder in group.folders
        for file in folder.glob("*")
        if file.name == "pids.max"
    }
    assert int(held["pids.max"]) == LIMITS.processes + cgroup.OVERHEAD_PROCESSES
    assert all((folder / "cgroup.procs").read_text() for folder in group.folders)
    pool.close()
    assert not any(folder.exists() for folder in group.folders)


def test_what_a_killed_process_left_of_its_cgroups_is_removed_by_the_next(report):
    if report.level is not Level.STANDARD:
        pytest.skip(f"no cgroup: {report.reason}")
    group = cgroup.make(96, 4)
    left = [folder.parent / "thumbwheel-2147483646-left" for folder in group.folders]
    for folder in left:
        folder.mkdir()
    other = cgroup.make(96, 4)
    assert not any(folder.exists() for folder in left)
    assert all(folder.exists() for folder in group.folders)  # of a process that lives
    group.remove()
    other.remove()


def test_what_is_still_in_a_cgroup_is_killed_when_it_is_removed(report):
    if report.level is not Level.STANDARD:
        pytest.skip(f"no cgroup: {report.reason}")
    group = cgroup.make(96, 4)
    with subprocess.Popen(["sleep", "100"]) as child:
        for folder in group.folders:
            (folder / "cgroup.procs").write_text(str(child.pid))
        group.remove()
        assert child.wait(60) == -signal.SIGKILL
    assert not any(folder.exists() for folder in group.folders)


def test_no_process_is_left_when_the_pool_is_closed(report):
    before = set(psutil.Process().children(recursive=True))
    pool = Pool(LIMITS, workers=1, level=report.level)
    run_code(pool, "import os, time\nif os.fork() == 0: time.sleep(100)")
    pool.close()
    assert set(psutil.Process().children(recursive=True)) <= before


def test_no_process_is_left_when_the_host_is_killed(report):
    code = (
        "import sys, psutil, time\nfrom thumbwheel.sandbox.pool import Pool\nfrom "
        "thumbwheel.sandbox.types import Level, SandboxJob\n"
        f"pool = Pool(workers=1, level=Level({str(report.level)!r}))\npool.run([SandboxJob('1')])\n"
        "print(*[child.pid for child in psutil.Process().children(recursive=True)], "
        "flush=True)\ntime.sleep(60)"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    numbers = [int(word) for word in host.stdout.readline().split()]
    assert len(numbers) >= 2
    host.send_signal(signal.SIGKILL)
    host.wait()
    host.stdout.close()
    until(lambda: not any(psutil.pid_exists(number) for number in numbers))
