"""Several processes that train one model: each is a rank, and holds the whole of it.

Every rank plans the same micro-batches, since a plan depends on the examples, the budget and the
number of ranks only.
It computes its share, and all get the results of all, so that whoever stands above the engine sees
one engine (score.py). Gradients are summed and never averaged: a loss is divided by the totals of
the whole optimiser batch before.

Results travel as tensors and JSON, without pickle. A rank waits for the others as long as they give
signs of life. One that is lost ends all (RankLostError), and one that ran out of memory tells the
others, which then act as if they had (MemoryError). Who starts the processes is
training/launch.py's business.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
LISTENER = "MASTER_LISTENER"
"""Variable with the number of the open socket, bound to MASTER_PORT, on which rank 0 listens;
without it rank 0 binds the port itself."""
LOST = 69
"""Exit code of a rank that ended because another one was lost."""
START = 600.0
"""Seconds in which the ranks have to come together: some load their libraries later than others."""
PATIENCE = 60.0
"""Seconds of a transfer, and seconds without a sign of life after which a rank is lost."""
BEAT = 5.0
"""Seconds between two signs of life."""
BUCKET = 1 << 24
"""Numbers of a gradient that are summed up at once, so that their copy stays small."""
TREE = "tree"
"""Name of the tensor, in a message, that holds the JSON."""


class RankLostError(Exception):
    """Another rank has ended, is silent, or does something else than this one."""


class RankOutOfMemoryError(MemoryError):
    """Some rank ran out of memory. All ranks raise it at the same point."""


class Ranks:
    """The ranks of a run as one of them sees them; by default it is alone.

    All ranks call `exchange`, `from_first`, `agree` and `sum_gradients` in the same order.
    """

    def __init__(self, rank: int = 0, world: int = 1, device: str = "cpu") -> None:
        self.rank, self.world, self._device = rank, world, device
        self._store: Any = None
        self._meetings = 0
        self._patience = PATIENCE

    @classmethod
    def join(
        cls, variables: Mapping[str, str], device: str = "cpu", patience: float = PATIENCE
    ) -> Ranks:
        """Join the ranks that the `variables` describe, under torchrun's names, or return a rank
        that is alone. Raises RankLostError if they do not come together."""
        world = int(variables.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        ranks = cls(int(variables["RANK"]), world, device)
        ranks._patience = patience
        with _lost_if_it_fails():
            ranks._connect(variables)
        return ranks

    def _connect(self, variables: Mapping[str, str]) -> None:
        import torch.distributed as dist

        address, port = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
        listener = variables.get(LISTENER)
        first: dict[str, Any] = {"is_master": True, "wait_for_workers": False}
        if listener is not None:
            first["master_listen_fd"] = int(listener)
        role = first if self.is_first else {"is_master": False}
        make_store: Any = dist.TCPStore  # type: ignore[attr-defined]
        start = timedelta(seconds=START)
        self._store = make_store(address, port, self.world, timeout=start, **role)
        # A client of its own, since one that waits for an answer is closed to other threads.
        pulse = make_store(address, port, self.world, is_master=False, timeout=start)
        pulse.set(f"beat/{self.rank}", "0")
        threading.Thread(target=self._beat, args=(pulse,), name="beat", daemon=True).start()
        self.agree()

        # Messages lie in main memory whatever the device is.
        backend = "gloo" if self._device == "cpu" else f"cpu:gloo,{self._device}:nccl"
        dist.init_process_group(
            backend,
            store=self._store,
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(seconds=self._patience),
        )

    @property
    def is_first(self) -> bool:
        """Whether this rank decides, and writes what the run leaves behind."""
        return self.rank == 0

    def owners(self, costs: Sequence[int]) -> list[int]:
        """Return the rank that gets each of several pieces of work with these `costs`: the most
        expensive piece first, to the rank that has least."""
        loads = [0] * self.world
        owner = [0] * len(costs)
        for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
            rank = loads.index(min(loads))
            owner[index] = rank
            loads[rank] += costs[index]
        return owner

    def exchange(self, value: T, what: str) -> list[T]:
        """Return the values of all ranks, by rank: tensors, numbers, texts, None, and lists, tuples
        and mappings (from texts) of these. `what` names them in errors.

        Raises RankLostError, and RankOutOfMemoryError if a rank reports a shortage instead.
        """
        if self.world == 1:
            return [value]
        import torch
        import torch.distributed as dist

        message = pack(value)
        sizes = [int(note["bytes"]) for note in self._meet(what, bytes=len(message))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(message)] = message
        parts = [torch.empty_like(padded) for _ in sizes]
        with _lost_if_it_fails():
            dist.all_gather(parts, padded)
        values: list[T] = []
        for rank, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            values.append(value if rank == self.rank else unpack(part[:size], self._device))
        return values

    def gather(self, values: Sequence[T], owners: Sequence[int], what: str) -> list[T]:
        """Return the results of all pieces of work in their order; `values` are those of the pieces
        that this rank owns. Raises as `exchange` does."""
        parts = [iter(part) for part in self.exchange(list(values), what)]
        return [next(parts[owner]) for owner in owners]

    def from_first(self, make: Callable[[], T], what: str) -> T:
        """Return what `make` returns in the first rank; the others do not call it."""
        if self.world == 1:
            return make()
        value: Any = make() if self.is_first else None
        result: T = self.exchange(value, what)[0]
        return result

    def agree(self) -> None:
        """Wait until all ranks are here. Raises as `exchange` does."""
        if self.world > 1:
            self._meet("agreement")

    def leave(self) -> None:
        """Part from the others for good. The first rank goes last, since they meet at its store."""
        if self.world == 1:
            return
        self._meet("end")
        with _lost_if_it_fails():
            if not self.is_first:
                self._store.set(f"left/{self.rank}", "")
                return
            for rank in range(1, self.world):
                self._await(f"left/{rank}", rank)

    def report_shortage(self, error: BaseException) -> None:
        """Tell the ranks that wait for this one that it ran out of memory: each of them raises
        RankOutOfMemoryError, wherever it is."""
        if self.world > 1 and not isinstance(error, RankOutOfMemoryError):
            text = " ".join(str(error).split())[:120] or type(error).__name__
            with suppress(RankOutOfMemoryError):
                self._meet("shortage", shortage=text)

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Give every parameter the sum of its gradients in all ranks; one that has none anywhere
        keeps none."""
        if self.world == 1:
            return
        import torch
        import torch.distributed as dist

        present = "".join("01"[parameter.grad is not None] for parameter in parameters)
        notes = self._meet("gradients", present=present)
        trained: list[torch.nn.Parameter] = []
        for parameter, flags in zip(
            parameters, zip(*(note["present"] for note in notes), strict=True), strict=True
        ):
            if "1" not in flags:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            trained.append(parameter)
        for bucket in _buckets(trained):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            with _lost_if_it_fails():
                dist.all_reduce(flat)
            sums = flat.split([gradient.numel() for gradient in bucket])
            for gradient, total in zip(bucket, sums, strict=True):
                gradient.copy_(total.view_as(gradient))

    def _meet(self, what: str, **note: Any) -> list[dict[str, Any]]:
        """Wait until every rank is here; return what each of them brought."""
        self._meetings += 1
        count = self._meetings
        with _lost_if_it_fails():
            self._store.set(f"{count}/{self.rank}", json.dumps({"what": what, **note}))
            notes = [json.loads(self._await(f"{count}/{rank}", rank)) for rank in range(self.world)]
            # All have read this one, or they would not be here.
            self._store.delete_key(f"{count - 2}/{self.rank}")
        for rank, other in enumerate(notes):
            if "shortage" in other:
                raise RankOutOfMemoryError(f"rank {rank}: {other['shortage']}")
        for rank, other in enumerate(notes):
            if other["what"] != what:
                raise RankLostError(
                    f"rank {rank} is at its {other['what']}, and rank {self.rank} at its {what}"
                )
        return notes

    def _await(self, key: str, rank: int) -> bytes:
        """Return the value of `key`, which `rank` sets, however long that takes it. Raises
        RankLostError once the rank gives no sign of life."""
        import torch.distributed as dist

        beat, since = b"", time.monotonic()
        while True:
            try:
                self._store.wait([key], timedelta(seconds=min(BEAT, self._patience)))
            except dist.DistStoreError:
                current = self._store.get(f"beat/{rank}")
                if current != beat:
                    beat, since = current, time.monotonic()
                elif time.monotonic() - since > self._patience:
                    raise RankLostError(
                        f"rank {rank} gave no sign of life for {self._patience:g} seconds"
                    ) from None
            else:
                value: bytes = self._store.get(key)
                return value

    def _beat(self, pulse: Any) -> None:
        """Give signs of life until nobody takes them any more."""
        count = 0
        with suppress(RuntimeError):
            while True:
                time.sleep(min(BEAT, self._patience / 4))
                count += 1
                pulse.set(f"beat/{self.rank}", str(count))


@contextmanager
def _lost_if_it_fails() -> Iterator[None]:
    """Turn the errors of torch's store and of its transfers into RankLostError."""
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())[:200]
        raise RankLostError(f"the connection to another rank broke ({text})") from error


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.Tensor]]:
    """Yield the gradients in groups of one type, small enough to be copied."""
    bucket: list[torch.Tensor] = []
    count = 0
    for parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None  # noqa: S101 - narrows the type
        is_other = bucket and bucket[0].dtype != gradient.dtype
        if bucket and (is_other or count + gradient.numel() > BUCKET):
            yield bucket
            bucket, count = [], 0
        bucket.append(gradient)
        count += gradient.numel()
    if bucket:
        yield bucket


def pack(value: Any) -> torch.Tensor:
    """Return `value` as bytes [n]: its tensors as safetensors writes them, the rest as JSON."""
    import torch
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    tree = json.dumps(_flattened(value, tensors)).encode()
    tensors[TREE] = torch.frombuffer(bytearray(tree), dtype=torch.uint8)
    return torch.frombuffer(bytearray(save(tensors)), dtype=torch.uint8)


def unpack(message: torch.Tensor, device: str) -> Any:
    """Return the value in `message`; tensors that were on an accelerator come to `device`."""
    from safetensors.torch import load

    tensors = load(message.numpy().tobytes())
    tree = json.loads(tensors.pop(TREE).numpy().tobytes())
    return _rebuilt(tree, tensors, device)


def _flattened(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return `value` as JSON, with its tensors put into `tensors` by number."""
    import torch

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        number = str(len(tensors))
        # A copy, since tensors that share memory cannot be saved together.
        tensors[number] = value.detach().cpu().contiguous().clone()
        return {"tensor": number, "moves": value.device.type != "cpu"}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"mapping": {key: _flattened(part, tensors) for key, part in value.items()}}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_flattened(part, tensors) for part in value]}
    raise TypeError(f"a {type(value).__name__} cannot be sent to other ranks")


def _rebuilt(tree: Any, tensors: Mapping[str, torch.Tensor], device: str) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        tensor = tensors[tree["tensor"]]
        return tensor.to(device) if tree["moves"] else tensor
    if "mapping" in tree:
        return {key: _rebuilt(part, tensors, device) for key, part in tree["mapping"].items()}
    kind = tuple if "tuple" in tree else list
    return kind(_rebuilt(part, tensors, device) for part in tree[kind.__name__])
