"""The system calls that a candidate may make, as a seccomp filter for x86_64 and aarch64.

An allow-list: what is not named is refused with EPERM, also what future kernels add. Sockets only
within the machine's own namespace (AF_UNIX), no new namespaces, no tracing, no keys, no shared
memory outside of the sized file system. To allow one more: its name with its number on both
machines in ALLOWED ("-": it does not exist there).
"""

from __future__ import annotations

import ctypes
import struct

ALLOWED = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -,
lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134,
rt_sigprocmask 14 135, rt_sigreturn 15 139, pread64 17 67, pwrite64 18 68, readv 19 65,
writev 20 66, access 21 -, pipe 22 -, select 23 -, sched_yield 24 124, mremap 25 216,
msync 26 227, mincore 27 232, madvise 28 233, dup 32 23, dup2 33 -, pause 34 -, nanosleep 35 101,
getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172, sendfile 40 71, connect 42 203,
accept 43 202, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, shutdown 48 210,
bind 49 200, listen 50 201, getsockname 51 204, getpeername 52 205, socketpair 53 199,
setsockopt 54 208, getsockopt 55 209, fork 57 -, vfork 58 -, execve 59 221, exit 60 93,
wait4 61 260, kill 62 129, uname 63 160, fcntl 72 25, flock 73 32, fsync 74 82, fdatasync 75 83,
truncate 76 45, ftruncate 77 46, getdents 78 -, getcwd 79 17, chdir 80 49, fchdir 81 50,
rename 82 -, mkdir 83 -, rmdir 84 -, creat 85 -, link 86 -, unlink 87 -, symlink 88 -,
readlink 89 -, chmod 90 -, fchmod 91 52, umask 95 166, gettimeofday 96 169, getrlimit 97 163,
getrusage 98 165, sysinfo 99 179, times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175,
getegid 108 177, setpgid 109 154, getppid 110 173, getpgrp 111 -, setsid 112 157,
getgroups 115 158, getresuid 118 148, getresgid 120 150, getpgid 121 155, getsid 124 156,
capget 125 90, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigqueueinfo 129 138,
rt_sigsuspend 130 133, sigaltstack 131 132, utime 132 -, statfs 137 43, fstatfs 138 44,
getpriority 140 141, setpriority 141 140, sched_getparam 143 121, sched_getscheduler 145 120,
sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127,
prctl 157 167, arch_prctl 158 -, setrlimit 160 164, gettid 186 178, readahead 187 213,
tkill 200 130, time 201 -, futex 202 98, sched_setaffinity 203 122, sched_getaffinity 204 123,
epoll_create 213 -, getdents64 217 61, set_tid_address 218 96, restart_syscall 219 128,
fadvise64 221 223, timer_create 222 107, timer_settime 223 110, timer_gettime 224 108,
timer_getoverrun 225 109, timer_delete 226 111, clock_gettime 228 113, clock_getres 229 114,
clock_nanosleep 230 115, exit_group 231 94, epoll_wait 232 -, epoll_ctl 233 21, tgkill 234 131,
utimes 235 -, waitid 247 95, openat 257 56, mkdirat 258 34, futimesat 261 -, newfstatat 262 79,
unlinkat 263 35, renameat 264 38, linkat 265 37, symlinkat 266 36, readlinkat 267 78,
fchmodat 268 53, faccessat 269 48, pselect6 270 72, ppoll 271 73, set_robust_list 273 99,
get_robust_list 274 100, utimensat 280 88, epoll_pwait 281 22, signalfd 282 -,
timerfd_create 283 85, eventfd 284 -, fallocate 285 47, timerfd_settime 286 86,
timerfd_gettime 287 87, accept4 288 242, signalfd4 289 74, eventfd2 290 19, epoll_create1 291 20,
dup3 292 24, pipe2 293 59, inotify_init1 294 26, inotify_add_watch 254 27,
inotify_rm_watch 255 28, preadv 295 69, pwritev 296 70, prlimit64 302 261, sendmmsg 307 269,
recvmmsg 299 243, getcpu 309 168, renameat2 316 276, getrandom 318 278, membarrier 324 283,
copy_file_range 326 285, preadv2 327 286, pwritev2 328 287, statx 332 291, rseq 334 293,
close_range 436 436, openat2 437 437, faccessat2 439 439, epoll_pwait2 441 441,
futex_waitv 449 449, fchmodat2 452 452
"""

MACHINES = {
    "x86_64": (0xC000003E, 0, {"socket": 41, "clone": 56, "clone3": 435, "ioctl": 16}),
    "aarch64": (0xC00000B7, 1, {"socket": 198, "clone": 220, "clone3": 435, "ioctl": 29}),
}
"""Machine -> its audit number, its column in ALLOWED, and the calls whose arguments decide."""

X32 = 0x40000000
NEW_NAMESPACES = 0x7E020000
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they put characters into somebody's terminal."""
AF_UNIX = 1
EPERM, ENOSYS = 1, 38

LOAD, EQUAL, FROM, ABOVE, ANY, RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
NUMBER_AT, MACHINE_AT, ARGUMENT_AT = 0, 4, 16

PR_SET_SECCOMP, MODE_FILTER = 22, 2


def program(machine: str) -> bytes:
    """Return the filter for `machine` (the value of `platform.machine`). Raises ValueError for a
    machine without a filter."""
    if machine not in MACHINES:
        raise ValueError(
            f"no filter of system calls for {machine!r}; there is one for {', '.join(MACHINES)}"
        )
    audit, column, special = MACHINES[machine]
    steps = [
        (LOAD, 0, 0, MACHINE_AT),
        (EQUAL, 1, 0, audit),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    steps += [(FROM, 0, 1, X32), (RETURN, 0, 0, KILL)]
    steps += [
        (EQUAL, 0, 1, special["clone3"]),
        (RETURN, 0, 0, ERRNO | ENOSYS),
    ]  # so that libc takes clone, whose flags can be read
    steps += _when(
        special["clone"],
        [(ANY, 0, 1, NEW_NAMESPACES), (RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)],
        0,
    )
    steps += _when(
        special["socket"],
        [(EQUAL, 1, 0, AF_UNIX), (RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)],
        0,
    )
    refused = [
        step
        for number in TERMINAL_INPUT
        for step in ((EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | EPERM))
    ]
    steps += _when(special["ioctl"], [*refused, (RETURN, 0, 0, ALLOW)], 1)
    for low, high in ranges(column):
        steps += [
            (FROM, 1, 0, low),
            (RETURN, 0, 0, ERRNO | EPERM),
            (ABOVE, 1, 0, high),
            (RETURN, 0, 0, ALLOW),
        ]
    steps.append((RETURN, 0, 0, ERRNO | EPERM))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _when(
    number: int, steps: list[tuple[int, int, int, int]], argument: int
) -> list[tuple[int, int, int, int]]:
    """Return `steps` on the low half of an argument if the call is `number`; they end in a
    return."""
    return [(EQUAL, 0, len(steps) + 1, number), (LOAD, 0, 0, ARGUMENT_AT + 8 * argument), *steps]


def ranges(column: int) -> list[tuple[int, int]]:
    """Return the allowed numbers of a machine as ascending ranges, both ends included."""
    columns = [entry.split()[1:] for entry in ALLOWED.replace("\n", " ").split(",")]
    ranges: list[tuple[int, int]] = []
    for number in sorted(int(entry[column]) for entry in columns if entry[column] != "-"):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def install(filter: bytes) -> None:
    """Put the filter on this process and all that it starts; no_new_privs must be set. Raises
    OSError if the kernel refuses."""
    buffer = ctypes.create_string_buffer(filter, len(filter))
    header = struct.pack("HP", len(filter) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.c_char_p(header), 0, 0):
        raise OSError(ctypes.get_errno(), "the filter of system calls was refused")
