"""Pickles of strangers: what is honest comes out as data, everything else is refused, and nothing
is ever imported or called."""

from __future__ import annotations

import collections
import dataclasses
import enum
import io
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.compat.isaa import unpickle as machine
from thumbwheel.compat.isaa.unpickle import Standin, as_json, unpickle
from thumbwheel.importers.types import Unreadable

MODULE = "toolboxv2.mods.isaa.base.Agent.types"
PROTOCOLS = pytest.mark.parametrize("protocol", range(6))


@pytest.fixture
def agent_classes() -> Iterator[types.ModuleType]:
    """The module that a real checkpoint names, for writing one; it is gone when it is read."""
    names = [MODULE.rsplit(".", count)[0] for count in range(5, 0, -1)] + [MODULE]
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    module = sys.modules[MODULE]

    @dataclasses.dataclass
    class AgentCheckpoint:
        timestamp: Any = None
        session_data: Any = None

    class Level(enum.Enum):
        HIGH = "high"

    for kind in (AgentCheckpoint, Level):
        kind.__module__, kind.__qualname__ = MODULE, kind.__name__
        setattr(module, kind.__name__, kind)
    yield module
    for name in names:
        sys.modules.pop(name, None)


@PROTOCOLS
def test_an_honest_checkpoint_becomes_data(agent_classes: types.ModuleType, protocol: int) -> None:
    time = datetime(2026, 1, 5, 8, 30, 0, 123, tzinfo=timezone(timedelta(hours=2)))
    history = collections.deque([{"role": "user", "content": "Grüße €"}], maxlen=50)
    shared = {"a": [1, 2.5, None, True, b"x", -7, 2**40]}
    session = collections.OrderedDict(
        s1={"history": history}, level=agent_classes.Level.HIGH, one=shared, two=shared
    )
    values = collections.defaultdict(
        list,
        k=[
            date(2026, 1, 5),
            datetime(2026, 1, 5),
            timedelta(seconds=90),
            {1, 2},
            frozenset("ab"),
            UTC,
        ],
    )
    data = pickle.dumps(
        agent_classes.AgentCheckpoint(
            time, {"x": session, "kept": values, (1, "b"): "tuple key", 3: 4}
        ),
        protocol,
    )
    for name in [name for name in sys.modules if name.startswith("toolboxv2")]:
        del sys.modules[name]
    unpickled = unpickle(data)
    assert isinstance(unpickled, Standin) and unpickled.name == "AgentCheckpoint"
    flat = as_json(unpickled.fields)
    assert flat["timestamp"] == "2026-01-05T08:30:00.000123+02:00"
    assert flat["session_data"]["x"]["s1"]["history"] == [{"role": "user", "content": "Grüße €"}]
    assert flat["session_data"]["x"]["level"] == "high"
    assert (
        flat["session_data"]["x"]["one"]
        == flat["session_data"]["x"]["two"]
        == {"a": [1, 2.5, None, True, "<bytes>", -7, 2**40]}
    )
    assert flat["session_data"]["kept"]["k"][:3] == ["2026-01-05", "2026-01-05T00:00:00", 90.0]
    assert sorted(flat["session_data"]["kept"]["k"][4]) == ["a", "b"]
    assert not [name for name in sys.modules if name.startswith("toolboxv2")]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=json_values, protocol=st.integers(0, 5))
def test_plain_values_are_what_pickle_says_they_are(value: Any, protocol: int) -> None:
    assert as_json(unpickle(pickle.dumps(value, protocol))) == value


class Calls:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function: Any, *arguments: Any, **more: Any) -> None:
        self.parts = (function, arguments, *more.values())

    def __reduce__(self) -> Any:
        return self.parts


def glob(name: str) -> bytes:
    module, _, attribute = name.rpartition(".")
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


TOUCH = "touch /tmp/thumbwheel-was-here"
OBJ = f"{MODULE}.AgentCheckpoint"
HOSTILE: dict[str, bytes] = {
    "os.system": pickle.dumps(Calls(os.system, TOUCH)),
    "subprocess.Popen": pickle.dumps(
        Calls(subprocess.Popen, ["touch", "/tmp/thumbwheel-was-here"])
    ),
    "builtins.eval": pickle.dumps(Calls(eval, "__import__('os').system('id')")),
    "builtins.exec": pickle.dumps(Calls(exec, "import os")),
    "builtins.__import__": pickle.dumps(Calls(__import__, "os")),
    "builtins.open": pickle.dumps(Calls(open, "/etc/passwd")),
    "builtins.getattr of os": b"cbuiltins\ngetattr\n(cos\npath\nX\x06\x00\x00\x00systemtR.",
    "getattr of what is listed, called": b"c"
    + b"builtins\ngetattr\n("
    + glob(OBJ)
    + text("__init__")
    + b"tR(tR.",
    "getattr of a string": b"cbuiltins\ngetattr\n(" + text("x") + text("format") + b"tR.",
    "operator.attrgetter": b"coperator\nattrgetter\n(" + text("system") + b"tR.",
    "functools.partial": b"cfunctools\npartial\n(" + glob("os.system") + text("id") + b"tR.",
    "builtins.map": b"cbuiltins\nmap\n(" + glob("os.system") + b"]" + text("id") + b"atR.",
    "builtins.type": b"cbuiltins\ntype\n(" + text("x") + b")}tR.",
    "builtins.setattr": b"cbuiltins\nsetattr\n(NNNtR.",
    "numpy": b"cnumpy.core.multiarray\n_reconstruct\n)R.",
    "torch": b"ctorch._utils\n_rebuild_tensor_v2\n)R.",
    "pickle.loads": b"cpickle\nloads\n(C\x01.tR.",
    "runpy": b"crunpy\nrun_path\n(" + text("/x") + b"tR.",
    "importlib": b"cimportlib\nimport_module\n(" + text("os") + b"tR.",
    "codecs.decode": b"c_codecs\ndecode\n(" + text("x") + b"tR.",
    "codecs to another encoding": b"c_codecs\nencode\n(" + text("x") + text("idna") + b"tR.",
    "copyreg of another class": b"ccopyreg\n_reconstructor\n("
    + glob("builtins.dict")
    + glob("builtins.object")
    + b"NtR.",
    "copyreg with a state": b"ccopyreg\n_reconstructor\n("
    + glob(OBJ)
    + glob("builtins.dict")
    + b"}tR.",
    "copyreg.__newobj__": b"ccopyreg\n__newobj__\n(" + glob("os.system") + b"tR.",
    "STACK_GLOBAL": b"\x80\x04" + b"\x8c\x02os\x8c\x06system\x93.",
    "STACK_GLOBAL from the memo": b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93.",
    "STACK_GLOBAL with no texts": b"\x80\x04]}\x93.",
    "STACK_GLOBAL dotted": b"\x80\x04\x8c\x08builtins\x8c\x0bobject.mro2\x93.",
    "a dotted name of a listed module": b"\x80\x04"
    + text(MODULE)
    + text("AgentCheckpoint.os")
    + b"\x93.",
    "a function of a listed module": glob(f"{MODULE}.os") + b")R.",
    "a module that begins alike": glob(f"{MODULE}.evil.Thing") + b")R.",
    "a module with a line end": b"\x80\x04\x8c"
    + bytes([len(MODULE) + 1])
    + MODULE.encode()
    + b"\n\x8c\x01A\x93)R.",
    "the builtins by another name": b"c__builtin__\neval\n(" + text("1") + b"tR.",
    "INST": b"(" + text("id") + b"ios\nsystem\n.",
    "INST of a listed class": b"(i" + MODULE.encode() + b"\nAgentCheckpoint\n.",
    "OBJ": b"(" + glob(OBJ) + b"o.",
    "NEWOBJ of another class": glob("subprocess.Popen") + b")\x81.",
    "NEWOBJ of a text": text("x") + b")\x81.",
    "NEWOBJ_EX": b"\x80\x04" + glob(OBJ) + b")}\x92.",
    "REDUCE of a text": text("x") + b")R.",
    "REDUCE without a tuple": glob(OBJ) + b"}R.",
    "REDUCE of a stand-in": glob(OBJ) + b")\x81)R.",
    "REDUCE of builtins.object": glob("builtins.object") + b")R.",
    "BUILD of a list": b"]}b.",
    "BUILD of a name": glob(OBJ) + b"}b.",
    "BUILD of datetime itself": glob("datetime.datetime") + b"}b.",
    "BUILD with slots of a name": glob(OBJ) + b"N}" + text("__reduce__") + text("x") + b"s\x86b.",
    "BUILD with a list": glob(OBJ) + b")\x81]b.",
    "BUILD with a name": glob(OBJ) + b")\x81" + glob("builtins.list") + b"b.",
    "extension registry 1": b"\x80\x02\x82\x01.",
    "extension registry 2": b"\x80\x02\x83\x01\x00.",
    "extension registry 4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "persistent id": b"Psome-id\n.",
    "binary persistent id": text("some-id") + b"Q.",
    "out-of-band buffer": b"\x80\x05\x97.",
    "read-only buffer": b"\x80\x05\x97\x98.",
    "a huge BINBYTES": b"B\xff\xff\xff\xff.",
    "a huge BINBYTES8": b"\x8e" + struct.pack("<Q", 2**62) + b".",
    "a negative BINSTRING": b"T" + struct.pack("<i", -5) + b".",
    "a huge BINUNICODE8": b"\x8d" + struct.pack("<Q", 2**40) + b".",
    "a huge BYTEARRAY8": b"\x96" + struct.pack("<Q", 2**63 - 1) + b".",
    "a huge frame": b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b".",
    "a huge LONG4": b"\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    "a negative LONG4": b"\x8b" + struct.pack("<i", -1) + b".",
    "a long number": pickle.dumps(1 << 100_000),
    "a long number in digits": b"L" + b"9" * 100_000 + b"L\n.",
    "a long number in digits, INT": b"I" + b"9" * 4_000 + b"\n.",
    "a mark as value": b"(.",
    "a marked tuple": b"((t\x85.",
    "no mark": b"]]e.",
    "nothing on the stack": b"R.",
    "an unknown opcode": b"\xff.",
    "an unknown memo": b"h\x05.",
    "no end": b"]",
    "nothing": b"",
    "two values": b"]].",
    "odd items": b"}(" + text("a") + b"u.",
    "items of a list": b"](NNu.",
    "a dict as key": b"}}Ns.",
    "itself in a list": b"]q\x00h\x00a.",
    "itself in a dict": b"}q\x00" + text("a") + b"h\x00s.",
    "an impossible date": glob("datetime.datetime")
    + b"(C\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfftR.",
    "a date of a list": glob("datetime.datetime") + b"(]tR.",
    "an impossible zone": glob("datetime.timezone") + b"(NtR.",
    "a set of a dict": glob("builtins.set") + b"(}tR.",
    "a dict of a call": glob("collections.defaultdict") + b"(" + text("x") + b"tR.",
}


DEEDS = (
    "import",
    "open",
    "exec",
    "compile",
    "os.",
    "subprocess.",
    "pickle.",
    "ctypes.",
    "socket.",
    "code.",
)
done: list[str] = []
listening = False


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    if listening and event.startswith(DEEDS):
        done.append(event)


sys.addaudithook(listen)  # for good, which is why it listens only when asked


@pytest.mark.parametrize("name", HOSTILE)
def test_defect_0c1_a_hostile_pickle_is_refused(name: str) -> None:
    global listening
    done.clear()
    listening = True
    try:
        with pytest.raises(Unreadable) as refused:
            as_json(unpickle(HOSTILE[name]))
    finally:
        listening = False
    assert not done
    assert 10 < len(str(refused.value)) < 300
    assert not Path("/tmp/thumbwheel-was-here").exists()


def test_the_battery_is_dangerous_where_pickle_itself_reads_it(tmp_path: Path) -> None:
    """Without this the battery could be refused for being broken."""
    proof = tmp_path / "proof"
    data = pickle.dumps(Calls(os.system, f"touch {proof}"))
    with pytest.raises(Unreadable, match=r"system"):
        unpickle(data)
    assert not proof.exists()
    global listening
    done.clear()
    listening = True
    pickle.loads(data)
    listening = False
    assert proof.exists()
    assert {"pickle.find_class", "os.system"} <= set(done)


def limited(data: bytes) -> str:
    """The refusal, found out within 30 seconds and 300 MB."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(Unreadable) as refused:
        as_json(unpickle(data))
    assert time.process_time() - started < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    return str(refused.value)


@pytest.mark.slow
def test_a_memo_bomb_ends_early() -> None:
    lines = [b"]q\x00(" + b"N" * 10 + b"e"]
    lines += [
        b"]q" + bytes([level]) + b"(" + (b"h" + bytes([level - 1])) * 10 + b"e"
        for level in range(1, 40)
    ]
    assert "grows" in limited(b"(" + b"".join(lines) + b"t.")


def test_a_text_that_is_used_again_and_again_ends_early() -> None:
    assert "grows" in limited(b"](" + text("x" * 1_000_000) + b"q\x00" + b"h\x00" * 2_000 + b"e.")


def test_copies_on_request_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MOST_TEXT", 20_000_000)
    encode = (
        b"c_codecs\nencode\nq\x01" + text("x" * 1_000_000) + b"q\x02" + text("latin1") + b"q\x03"
    )
    assert "copies" in limited(b"(" + encode + b"h\x01h\x02h\x03\x86R" * 1_000 + b"t.")
    fill = b"}q\x04(" + b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(10_000)) + b"u"
    assert "copies" in limited(
        b"(" + glob(OBJ) + b"q\x05" + fill + b"h\x05)\x81h\x04b" * 1_000 + b"t."
    )


def test_copies_of_keys_and_of_member_names_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MOST_TEXT", 20_000_000)
    large = text("x" * 1_000_000) + b"q\x01"
    numbers = [b"J" + struct.pack("<i", n) for n in range(1_000)]
    keys = b"".join(b"(h\x01" + number + b"tNs" for number in numbers)
    assert "copies" in limited(b"](" + large + b"}" + keys + b"e.")
    wide = b"(" + b"h\x01" * 1_000 + b"tNs"
    assert "copies" in limited(b"](" + large + b"}" + wide + b"e.")
    members = (b"cbuiltins\ngetattr\n(" + glob(OBJ) + b"h\x01tR") * 1_000
    assert "copies" in limited(b"](" + large + members + b"e.")
    lent = b"}q\x02h\x01Ns" + b"h\x02" * 1_000
    assert "grows" in limited(b"](" + large + lent + b"e.")


def test_keys_and_members_as_honest_files_have_them_are_read() -> None:
    member = b"cbuiltins\ngetattr\n(" + glob(OBJ) + text("HIGH") + b"tR"
    assert as_json(unpickle(b"}(" + member + b"K\x01(" + text("a") + b"K\x02tK\x03u.")) == {
        "high": 1,
        "('a', 2)": 3,
    }


@pytest.mark.slow
def test_deep_nesting_is_refused_and_frees_without_harm() -> None:
    assert "deep" in limited(b"]" + b"]" * 300_000 + b"a" * 300_000 + b".")
    assert "deep" in limited(b"N" + b"\x85" * 300_000 + b".")


def test_a_huge_place_in_the_memo_costs_nothing() -> None:
    assert as_json(unpickle(b"]r\xff\xff\xff\xff.")) == []


def test_size_and_steps_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MOST_OPCODES", 100)
    with pytest.raises(Unreadable, match="steps"):
        unpickle(b"N0" * 200 + b"N.")
    monkeypatch.setattr(machine, "MOST_BYTES", 100)
    with pytest.raises(Unreadable, match="bytes"):
        unpickle(b"N" * 200)


@given(st.binary(max_size=200))
def test_noise_is_refused_or_plain(data: bytes) -> None:
    try:
        as_json(unpickle(data))
    except Unreadable as error:
        assert str(error)


@given(data=st.data(), protocol=st.integers(0, 5))
def test_a_spoilt_pickle_is_refused_or_plain(data: st.DataObject, protocol: int) -> None:
    whole = bytearray(
        pickle.dumps(
            {"a": [1, "x", {"b": datetime(2026, 1, 5, tzinfo=UTC)}], "c": {1, 2}}, protocol
        )
    )
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        as_json(unpickle(bytes(whole)))
    except Unreadable as error:
        assert str(error)


def test_a_stream_that_another_pickler_wrote_is_read_too() -> None:
    file = io.BytesIO()
    pickle._Pickler(file, 2).dump({"a": {"b": (1, 2)}})  # type: ignore[attr-defined]
    assert as_json(unpickle(file.getvalue())) == {"a": {"b": [1, 2]}}
