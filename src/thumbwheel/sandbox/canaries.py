"""Attacks that must fail before any code runs here: `level` says how safe it is, `examine` shows
attack by attack.

One attack that succeeds refuses the sandbox. To add one: an expression in ATTACKS that gives 'held'
where the attack failed; `tried` gives that for an OSError, `call` makes a system call by its
numbers on x86_64 and aarch64. Those on the verdict are whole programs, in OWN_VERDICTS and
OWN_ENDS.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

from thumbwheel.sandbox import cgroup
from thumbwheel.sandbox.bubblewrap import ENVIRONMENT
from thumbwheel.sandbox.inside import seccomp
from thumbwheel.sandbox.pool import Pool, fit_to_memory
from thumbwheel.sandbox.types import (
    Level,
    Limits,
    SandboxJob,
    SandboxOutcome,
    SandboxRefused,
    Tests,
)

FRESH_SECONDS = 3600
"""An examination is made again after this time."""
SMALL = Limits(memory_mb=96, processes=12, files_mb=4, inodes=128, wall_seconds=60, cpu_seconds=20)

PRELUDE = """
import ctypes, os, platform, resource, signal, socket, struct, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(intel, arm, *arguments):
    number = intel if platform.machine() == 'x86_64' else arm
    found = libc.syscall(ctypes.c_long(number), *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
def tried(act):
    try:
        return 'it worked: ' + repr(act())[:200]
    except (OSError, ValueError):
        return 'held'
def wrote(path):
    with open(path, 'w') as file:
        return file.write('x')
def most(act, limit):
    done = 0
    try:
        while done < limit:
            act(done)
            done += 1
    except (OSError, RuntimeError, MemoryError):
        return 'held'
    return f'{done} of them'
def child(seconds):
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        signal.pause()
        os._exit(0)
def capabilities():
    data = (ctypes.c_uint32 * 6)()
    libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), data)
    return 'held' if not any(data) else str(list(data))
def filled(folder):
    with open(folder + '/full', 'wb', buffering=0) as file:
        while True:
            file.write(b'x' * 65536)
def reached(family, kind, address):
    made = socket.socket(family, kind)
    made.settimeout(2)
    return made.connect(address)
"""

ATTACKS = {
    "a file of the host": "tried(lambda: open({secret!r}).read())",
    "the same by a link": "tried(lambda: (os.symlink({secret!r}, '/tmp/link'), "
    "open('/tmp/link').read()))",
    "the users of the host": "tried(lambda: open('/etc/passwd').read())",
    "homes": "tried(lambda: os.listdir('/root') + os.listdir('/home'))",
    "the environment of bubblewrap": "tried(lambda: open('/proc/1/environ').read())",
    "processes of the host": "tried(lambda: os.listdir('/proc'))",
    "its own environment": "'held' if set(os.environ) <= {names!r} else str(dict(os.environ))",
    "devices of the system": "tried(lambda: os.listdir('/sys'))",
    "writing to the root": "tried(lambda: wrote('/x'))",
    "writing to programs": "tried(lambda: wrote('/bin/ls'))",
    "writing to the library": "tried(lambda: wrote('/py/lib/x.py'))",
    "writing to what runs within": "tried(lambda: wrote('/app/inside/judge.py'))",
    "writing to /dev": "tried(lambda: wrote('/dev/x'))",
    "making programs writable": "tried(lambda: os.chmod('/bin/ls', 0o777))",
    "TCP to the host": "tried(lambda: reached(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', "
    "{port})))",
    "UDP": "tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', "
    "('127.0.0.1', "
    "{port})))",
    "a socket of the host by name": "tried(lambda: reached(socket.AF_UNIX, socket.SOCK_STREAM, "
    "{abstract!r}))",
    "IPv6": "tried(lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM))",
    "netlink": "tried(lambda: socket.socket(16, socket.SOCK_RAW))",
    "vsock": "tried(lambda: socket.socket(40, socket.SOCK_STREAM))",
    "packets": "tried(lambda: socket.socket(17, socket.SOCK_RAW))",
    "names of hosts": "tried(lambda: socket.getaddrinfo('localhost', 80) and "
    "socket.gethostbyname('example.org'))",
    "a namespace by unshare": "tried(lambda: call(272, 97, 0x10000000))",
    "a namespace by clone": "tried(lambda: call(56, 220, 0x10000000 | 17, None, None, None, None))",
    "a namespace by clone3": "tried(lambda: call(435, 435, None, 0))",
    "joining a namespace": "tried(lambda: call(308, 268, 0, 0))",
    "mounting": "tried(lambda: call(165, 40, b'none', b'/tmp', b'tmpfs', 0, None))",
    "unmounting": "tried(lambda: call(166, 39, b'/tmp', 2))",
    "changing the root": "tried(lambda: os.chroot('/tmp'))",
    "tracing": "tried(lambda: call(101, 117, 16, 1, None, None))",
    "reading another's memory": "tried(lambda: call(310, 270, 1, None, 0, None, 0, 0))",
    "bpf": "tried(lambda: call(321, 280, 0, None, 0))",
    "io_uring": "tried(lambda: call(425, 425, 1, None))",
    "perf": "tried(lambda: call(298, 241, None, 0, -1, -1, 0))",
    "userfaultfd": "tried(lambda: call(323, 282, 1))",
    "keys": "tried(lambda: call(250, 219, 0, -3, 0))",
    "a file in memory": "tried(lambda: call(319, 279, b'x', 0))",
    "shared memory": "tried(lambda: call(29, 194, 0, 1 << 30, 0o1600))",
    "a queue of messages": "tried(lambda: call(240, 180, b'x', 0o102, 0o600, None))",
    "files by handle": "tried(lambda: call(304, 265, -100, None, 0))",
    "making a device": "tried(lambda: os.mknod('/tmp/disk', 0o60600, os.makedev(8, 0)))",
    "typing into the terminal": "tried(lambda: __import__('fcntl').ioctl(1, 0x5412, b'x'))",
    "modules of the kernel": "tried(lambda: call(175, 105, None, 0, b''))",
    "becoming root": "tried(lambda: os.setuid(0))",
    "capabilities": "capabilities()",
    "rights of a file's owner": "'held' if libc.prctl(39, 0, 0, 0, 0) == 1 else 'no_new_privs is "
    "not "
    "set'",
    "signals to others": "'held' if os.getppid() == 0 else str(os.getppid())",
    "signals to its group": "'held' if os.getpgrp() == os.getpid() else str(os.getpgrp())",
    "raising a limit": "tried(lambda: [0 for name in (resource.RLIMIT_NPROC, resource.RLIMIT_AS) "
    "if "
    "resource.setrlimit(name, (-1, -1))])"
    " if resource.getrlimit(resource.RLIMIT_NPROC)[1] > 0 else 'no limit'",
    "real time": "tried(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))",
    "many open files": "most(lambda _: os.dup(0), 5000)",
    "memory": "most(lambda _: kept.append(bytearray(1 << 24)), 1000)",
    "filling the file system": "tried(lambda: filled('/tmp'))",
    "filling shared memory": "tried(lambda: filled('/dev/shm'))",
    "a sparse file": "tried(lambda: os.truncate(os.open('/tmp/sparse', os.O_CREAT | os.O_RDWR), 1 "
    "<< "
    "40))",
    "many files": "(os.path.exists('/tmp/full') and os.remove('/tmp/full')) or most(lambda n: "
    "wrote(f'/tmp/{{n}}'), 5000)",
    "many processes": "most(lambda _: child(20), 300)",
}
"""Name -> an expression; `secret`, `port`, `abstract` and `names` are filled in. They run in this
order, in one program."""

TOGETHER = """
def together():
    pids, lost = [], 0
    for _ in range(6):
        pid = os.fork()
        if pid == 0:
            held = bytearray(64 << 20)
            signal.alarm(20)
            signal.pause()
            os._exit(0)
        pids.append(pid)
    import time
    for _ in range(100):
        time.sleep(0.02)
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended:
            return 'held'
    return 'six processes hold 384 MB'
"""


SAYS_YES = """
def f(x): return 0
def is_close(*values): return True
def wanted(*values): return 0
"""
OWN_VERDICTS = {
    "judging itself by a helper": ("assert is_close(f(2), 4)", "f"),
    "the same, compared with True": ("assert is_close(f(2), 4) == True", "f"),
    "the same within bool()": ("assert bool(is_close(f(2), 4))", "f"),
    "the same within all()": ("assert all([is_close(f(2), 4)])", "f"),
    "the same by a variable": ("right = is_close(f(2), 4)\nassert right", "f"),
    "the same where no entry point is named": ("assert is_close(f(2), 4) == True", None),
    "naming what is wanted": ("assert f(2) == wanted()", "f"),
}
"""Name -> a test that the program would pass by its own word, and the entry point. The program is
SAYS_YES."""

OWN_ENDS = {
    "saying by exit that it is done": SandboxJob("import os\nos._exit(0)"),
    "saying by the conversation that it is done": SandboxJob(
        """
import gc, os, socket
from inside import protocol
for one in gc.get_objects():
    if isinstance(one, socket.socket):
        try: one.sendall(protocol.pack({'id': None, 'done': True}))
        except OSError: pass
os._exit(0)
"""
    ),
    "saying by every descriptor that it is done": SandboxJob(
        """
import os
for number in range(3, 200):
    for word in (b'end 0\\n', b'{"done": true}\\n'):
        try: os.write(number, word)
        except OSError: pass
os._exit(0)
"""
    ),
    "a script that says it is done": SandboxJob("echo 'end 0' >&9\nexit 0", "shell"),
}
"""Name -> a program without tests that leaves before its end."""


@dataclass(frozen=True)
class CanaryReport:
    """What an examination found. `attacks` maps each to "held" or to what it got."""

    level: Level
    reason: str
    fix: str
    attacks: dict[str, str]

    @property
    def allowed(self) -> bool:
        """Whether code may run."""
        return self.level is not Level.REFUSED


def examine() -> CanaryReport:
    """Try every attack on this machine; never raises because of a result."""
    attacks: dict[str, str] = {}
    try:
        reached, reason = _possible()
        attacks = _attacked(reached)
        failed = [name for name, result in attacks.items() if result != "held"]
        if failed:
            raise SandboxRefused(
                f"an attack succeeds here: {failed[0]} ({attacks[failed[0]]})",
                "Update the kernel and bubblewrap, then try again",
            )
    except SandboxRefused as error:
        return CanaryReport(Level.REFUSED, error.reason, error.fix, attacks)
    fix = (
        ""
        if reached is Level.STANDARD
        else "For a cgroup: run as root, or under: systemd-run --user --scope -p Delegate=yes"
    )
    return CanaryReport(reached, reason, fix, attacks)


def _possible() -> tuple[Level, str]:
    """Return the level that this machine can reach, and why not a higher one. Raises Refused."""
    if sys.platform != "linux":
        raise SandboxRefused(
            f"there is no sandbox on {sys.platform}", "Run in a Linux container or virtual machine"
        )
    if platform.machine() not in seccomp.MACHINES:
        raise SandboxRefused(
            f"there is no filter of system calls for {platform.machine()}",
            f"Run on {' or '.join(seccomp.MACHINES)}",
        )
    if shutil.which("bwrap") is None:
        raise SandboxRefused(
            "bubblewrap (bwrap) is not installed",
            "Run: apt-get install bubblewrap (or dnf, pacman, zypper)",
        )
    group = cgroup.make(SMALL.memory_mb, SMALL.processes)
    if isinstance(group, str):
        fit_to_memory(SMALL, 1)
        return Level.LIMITED, group
    group.remove()
    return Level.STANDARD, ""


def _attacked(reached: Level) -> dict[str, str]:
    abstract = f"\0thumbwheel-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as unix_socket,
    ):
        unix_socket.bind(abstract)
        unix_socket.listen()
        with tempfile.NamedTemporaryFile("w", prefix="thumbwheel-canary-") as secret:
            secret.write("secret")
            secret.flush()
            os.fchmod(secret.fileno(), 0o644)
            names = {
                "secret": secret.name,
                "port": listener.getsockname()[1],
                "abstract": abstract,
                "names": {*ENVIRONMENT, "PWD"},
            }
            return _run({name: code.format(**names) for name, code in ATTACKS.items()}, reached)


def _run(attacks: dict[str, str], reached: Level) -> dict[str, str]:
    pool = Pool(SMALL, workers=1, level=reached)
    try:
        results = _values(pool, PRELUDE + "kept = []\n", attacks)
        results |= _verdicts(pool)
        if reached is Level.STANDARD:
            results |= _values(
                pool, PRELUDE + TOGETHER, {"memory of many processes together": "together()"}
            )
        return results
    finally:
        pool.close()


def _values(pool: Pool, prelude: str, attacks: dict[str, str]) -> dict[str, str]:
    functions = "".join(
        f"def probe_{number}():\n    return {code}\n"
        for number, code in enumerate(attacks.values())
    )
    asserts = tuple(
        f"assert (found := probe_{number}()) == 'held', found" for number in range(len(attacks))
    )
    (outcome,) = pool.run([SandboxJob(prelude + functions, tests=Tests(asserts))])
    if outcome.state is not SandboxOutcome.DONE:
        raise SandboxRefused(
            f"the examination ended early: {outcome.state} ({outcome.detail})",
            "Run: thumbwheel sandbox check",
        )
    results = dict.fromkeys(attacks, "held")
    for name, passed in zip(attacks, outcome.passed, strict=True):
        if not passed:
            results[name] = (
                outcome.detail
            )  # that of the first one, which is the one that is reported
    return results


def _verdicts(pool: Pool) -> dict[str, str]:
    """Run programs that claim to be right, or done, and return the result of each. Raises Refused
    if a right answer is not found right either."""
    (right,) = pool.run(
        [SandboxJob("def f(x): return 2 * x", tests=Tests(("assert f(2) == 4",), entry_point="f"))]
    )
    if right.passed != (True,):
        raise SandboxRefused(
            f"a right answer is not found right: {right.state} ({right.detail})",
            "Run: thumbwheel sandbox check",
        )
    results = {}
    for name, (test, entry) in OWN_VERDICTS.items():
        (outcome,) = pool.run([SandboxJob(SAYS_YES, tests=Tests((test,), entry_point=entry))])
        results[name] = "it passed" if any(outcome.passed) else "held"
    for name, job in OWN_ENDS.items():
        (outcome,) = pool.run([job])
        results[name] = "it counts as done" if outcome.state is SandboxOutcome.DONE else "held"
    return results


_lock = threading.Lock()
_last: list[tuple[float, CanaryReport]] = []


def level() -> Level:
    """Return the level of this machine, examined at most once an hour in a process. Raises Refused
    with the reason and its fix."""
    with _lock:
        if not _last or time.monotonic() - _last[0][0] > FRESH_SECONDS:
            _last[:] = [(time.monotonic(), examine())]
    report = _last[0][1]
    if not report.allowed:
        raise SandboxRefused(report.reason, report.fix)
    return report.level


def forget() -> None:
    """Examine again the next time, as after an hour."""
    with _lock:
        _last.clear()
