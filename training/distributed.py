"""Which process this is, under torchrun or alone; gloo on CPUs, nccl on GPUs; and what all processes agree on."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Result = TypeVar("Result")


@dataclass(frozen=True)
class World:
    """This process (`rank`), the number of processes (`size`) and the device it computes on."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sums(self, *values: Any) -> list[float]:
        """Each number, or one-element tensor, summed over all processes, in float64; every process gets the same."""
        own = torch.stack([torch.as_tensor(v, dtype=torch.float64, device=self.device).reshape(()) for v in values])
        if self.size > 1:
            dist.all_reduce(own)
        return [float(value) for value in own.tolist()]

    def from_first(self, decide: Callable[[], Result]) -> Result:
        """What the first process decides; an error it meets is raised on all, so that none waits for the others."""
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome[0] = decide()
            except Exception as error:
                outcome[1] = error
        if self.size > 1:
            dist.broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        result: Result = outcome[0]
        return result

    def gathered(self, value: Any) -> list[Any]:
        """Every process's value, in rank order, on every process."""
        everyone: list[Any] = [value]
        if self.size > 1:
            everyone = [None] * self.size
            dist.all_gather_object(everyone, value)
        return everyone


@contextmanager
def join() -> Iterator[World]:
    """Join the process group that torchrun describes in the environment, or run alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size == 1:
        yield World(0, 1, device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size, device)
    finally:
        dist.destroy_process_group()
