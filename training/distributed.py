"""Which process this is, under torchrun or alone; gloo on CPUs, nccl on GPUs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed


@dataclass(frozen=True)
class World:
    """This process (`rank`), the number of processes (`size`) and the device it computes on."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0


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
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(torch.distributed.get_rank(), size, device)
    finally:
        torch.distributed.destroy_process_group()
