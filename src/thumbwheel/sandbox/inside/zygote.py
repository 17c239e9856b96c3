"""The parent inside a sandbox: a warm interpreter that forks one child a run and never sees what is
run.

The host sends one message a run over the control socket: limits, and two descriptors (the
conversation and the output). The child gets process and mount namespaces of its own, one empty
sized file system, no capability, the filter of system calls and its limits; then it reads its work
from the conversation. It is process 1 of its namespace: when it ends, everything that it started
has ended. How it ended is told by this parent, never by the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import platform
import resource
import select
import signal
import socket
import sys
from typing import Any

from . import seccomp, work

WARM = """
abc ast bisect collections copy dataclasses datetime decimal enum fractions functools heapq io
itertools json math operator os random re statistics string sys textwrap time traceback typing
"""
"""Modules that are there already when a candidate imports them."""

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_NOSUID, MS_NODEV = 2, 4
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_CAP_AMBIENT, AMBIENT_CLEAR_ALL = (
    38,
    24,
    28,
    47,
    4,
)
NO_ROOT = 0x2F
"""Running a file as user 0 gives no capability, and this cannot be undone."""
CAPABILITY_VERSION = 0x20080522
EXTRA_PROCESSES = 3
"""bubblewrap's, this one and the watcher of a program without tests count against the limit of
processes."""
MEGABYTE = 1 << 20
STOP = b"K"
POLL = 0.01
"""Seconds between two looks at a child, where the system has no descriptor for it."""

LIBC = ctypes.CDLL(None, use_errno=True)


def main(control: int, sealed: bool) -> None:
    """Serve runs until the host closes the control socket. `sealed`: within bubblewrap; otherwise
    trusted code, without walls."""
    for name in WARM.split():
        __import__(name)
    gc.freeze()  # what is here already is not looked at again, so its pages stay shared
    filter = seccomp.program(platform.machine()) if sealed else b""
    link = socket.socket(fileno=control)
    link.send(b"{}")
    while True:
        data, descriptors, _, _ = socket.recv_fds(link, 4096, 2)
        if not data:
            return
        if not descriptors:
            continue  # an order to stop that came after the end
        try:
            child = _clone() if sealed else os.fork()
        except OSError as error:
            answer: dict[str, Any] = {"broken": f"no process could be made: {error}"}
        else:
            if child == 0:
                _child(link, json.loads(data.lstrip(STOP)), descriptors, filter)
            answer = {}
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(json.dumps(answer or _wait(link, child, sealed)).encode())


def _clone() -> int:
    """Call fork() into new namespaces of processes and mounts and return the pid."""
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    python = ctypes.PyDLL(None, use_errno=True)
    python.syscall.restype = ctypes.c_long
    python.PyOS_BeforeFork()
    pid = int(
        python.syscall(
            ctypes.c_long(number),
            ctypes.c_ulong(CLONE_NEWNS | CLONE_NEWPID | signal.SIGCHLD),
            None,
            None,
            None,
            None,
        )
    )
    error = ctypes.get_errno()
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid


def _wait(link: socket.socket, child: int, sealed: bool) -> dict[str, Any]:
    """Wait for the end of the run, or end it when the host says so or is gone; return how it
    ended."""
    pid_fd = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
    status, usage = 0, None
    while usage is None:
        sources: list[Any] = [link] if pid_fd is None else [link, pid_fd]
        ready, _, _ = select.select(sources, [], [], POLL if pid_fd is None else None)
        if link in ready:
            host_gone = not link.recv(1)
            _kill(child, sealed)
            if host_gone:
                os._exit(0)
        pid, status, used = os.wait4(child, os.WNOHANG)
        usage = used if pid else None
    if pid_fd is not None:
        os.close(pid_fd)
    if not sealed:
        _kill(child, sealed)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "cpu": usage.ru_utime + usage.ru_stime, "memory_kb": usage.ru_maxrss}


def _kill(child: int, sealed: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child, signal.SIGKILL) if sealed else os.killpg(child, signal.SIGKILL)


def _child(
    link: socket.socket, limits: dict[str, Any], descriptors: list[int], filter: bytes
) -> None:
    """Set up everything that stands between here and the candidate, then serve it; never
    returns."""
    conversation, output = descriptors
    try:
        link.close()
        os.set_inheritable(conversation, False)
        # a group of its own: a signal to the group of this process would reach the loop that
        # watches it
        os.setsid()
        if filter:
            _isolate(limits, filter)
        else:
            os.chdir(limits["folder"])
        _streams(output)
        _limit(limits, bool(filter))
        if filter:
            seccomp.install(filter)
        work.serve(socket.socket(fileno=conversation))
    except BaseException as error:  # noqa: BLE001 - nothing may return into the loop of the parent
        os.write(2, f"sandbox: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(70)


def _isolate(limits: dict[str, Any], filter: bytes) -> None:
    options = f"size={limits['files_mb']}m,nr_inodes={limits['inodes']},mode=0700".encode()
    _check(LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, options), "mount")
    os.chdir("/tmp")
    _check(LIBC.prctl(PR_SET_SECUREBITS, NO_ROOT, 0, 0, 0), "securebits")
    _check(LIBC.prctl(PR_CAP_AMBIENT, AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient")
    for capability in range(64):
        if LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            break  # past the last one that this kernel knows
    header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(LIBC.capset(header, none), "capset")
    _check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def _check(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _streams(output: int) -> None:
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)


def _limit(limits: dict[str, Any], sealed: bool) -> None:
    cpu = int(limits["cpu_seconds"])
    wanted = {
        "RLIMIT_CPU": cpu,
        "RLIMIT_AS": limits["memory_mb"] * MEGABYTE,
        "RLIMIT_FSIZE": limits["files_mb"] * MEGABYTE,
        "RLIMIT_NOFILE": limits["open_files"],
        "RLIMIT_CORE": 0,
    }
    if sealed:  # outside, the user's own processes would count
        wanted |= {"RLIMIT_NPROC": limits["processes"] + EXTRA_PROCESSES}
        wanted |= dict.fromkeys(
            ("RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_RTPRIO", "RLIMIT_NICE"), 0
        ) | {"RLIMIT_SIGPENDING": 256}
    for name, most in wanted.items():
        number = getattr(resource, name, None)
        if number is not None:
            hard = resource.getrlimit(number)[1]
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(number, (least, least))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "sealed")
