"""Which process this is, under torchrun or alone; gloo on CPUs, nccl on GPUs; and what all processes agree on."""

import ctypes
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from training.settings import SettingsError

Result = TypeVar("Result")
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
# What gloo and nccl say then; gloo's errors are plain RuntimeErrors that begin with its source file.
_LOST = re.compile(r"gloo/transport/.*(by peer|Broken pipe|[Tt]imed out)|ncclRemoteError")


@dataclass(frozen=True)
class World:
    """This process (`rank`), the number of processes (`size`) and the device it computes on.

    `patient` is a group of all processes on CPUs in which they wait for each other as long as it takes: for objects,
    and while one counts shards, checks checkpoints or writes them. None: the default group.
    """

    rank: int
    size: int
    device: torch.device
    patient: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def rows(self, *values: Any) -> Tensor:
        """Every process's numbers, or one-element tensors: float64 (size, values) on the CPU, the same everywhere."""
        own = torch.stack([torch.as_tensor(v, dtype=torch.float64, device=self.device).reshape(()) for v in values])
        everyone = own.new_empty(self.size, len(values))
        if self.size > 1:
            dist.all_gather(list(everyone.unbind()), own)
        else:
            everyone[0] = own
        return everyone.cpu()

    def from_first(self, decide: Callable[[], Result]) -> Result:
        """What the first process decides; an error it meets is raised on all, so that none waits for the others."""
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome[0] = decide()
            except Exception as error:
                outcome[1] = error
        if self.size > 1:
            dist.broadcast_object_list(outcome, group=self.patient)
        if outcome[1] is not None:
            raise outcome[1]
        result: Result = outcome[0]
        return result

    def gathered(self, value: Any) -> list[Any]:
        """Every process's value, in rank order, on every process."""
        everyone: list[Any] = [value]
        if self.size > 1:
            everyone = [None] * self.size
            dist.all_gather_object(everyone, value, group=self.patient)
        return everyone


def _number(variable: str, default: int) -> int:
    """A number in the environment."""
    value = os.environ.get(variable, str(default))
    if not value.isdecimal():
        raise SettingsError(f"{variable} in the environment must be a number, found {value!r}; unset it")
    return int(value)


@contextmanager
def join() -> Iterator[World]:
    """Join the process group that torchrun describes in the environment, or run alone.

    Raises SettingsError where the environment describes none, or there are more processes than GPUs.
    """
    size, local_rank = _number("WORLD_SIZE", 1), _number("LOCAL_RANK", 0)
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise SettingsError(
                f"process {local_rank} of this machine has no GPU of its own: there are {torch.cuda.device_count()}; "
                "start as many processes as GPUs (--nproc-per-node)"
            )
        torch.cuda.set_device(device)
    if size == 1:
        yield World(0, 1, device)
        return
    try:
        store, rank, size = next(dist.rendezvous("env://"))
    except ValueError as error:  # a variable is missing or no number; the message names it
        raise SettingsError(
            f"WORLD_SIZE is {size} in the environment, but {error}; start the run by torchrun, or unset WORLD_SIZE"
        ) from error
    # torchrun keeps one store over its restarts (2.14): a process that came back would now and then find the addresses
    # of those that died, and wait for them.
    attempt = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=size)
    patient = dist.new_group(backend="gloo", timeout=timedelta(days=1))
    yield World(rank, size, device, patient)  # type: ignore[arg-type]
    dist.destroy_process_group()  # not after an error: the others may be waiting in a collective, and this would too


def end_with_torchrun() -> None:
    """Have Linux send this process SIGTERM when the torchrun that started it dies: one that is killed stops nobody."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def peer_lost(error: RuntimeError) -> str:
    """torch's last line on a connection to another process that broke, as it does when that one ends; else empty."""
    text = str(error).strip()
    is_lost = isinstance(error, dist.DistNetworkError | dist.DistStoreError) or _LOST.search(text)
    return text.splitlines()[-1] if text and is_lost else ""
