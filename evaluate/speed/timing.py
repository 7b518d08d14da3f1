"""Times of several functions, taken in turn: only their ratios within a round mean something on a shared machine."""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

LEAST_ROUNDS, MOST_ROUNDS = 3, 30


@dataclass(frozen=True)
class Times:
    """Seconds of one function, round by round."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def faster_than(self, other: "Times") -> tuple[float, float, float]:
        """How many times, in the median and from the least to the most: by rounds that both were in."""
        ratios = [b / a for a, b in zip(self.seconds, other.seconds, strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)


def clock(device: str) -> Callable[[], float]:
    """Seconds: CPU time of this process where one thread works, else real time, after the device has finished."""
    if device == "cpu":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def finished() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return finished


def interleaved(works: Mapping[str, Callable[[], object]], device: str, budget: float) -> dict[str, Times]:
    """Each function once to warm up, then all of them in rounds, for about `budget` seconds and at least three rounds.

    Their order is another one in each round: whoever always came after the largest would find cold caches each time.
    """
    now = clock(device)
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    started, shuffled = time.perf_counter(), random.Random(0)
    for turn in range(MOST_ROUNDS):
        for name in shuffled.sample(sorted(works), len(works)):
            before = now()
            works[name]()
            seconds[name].append(now() - before)
        if turn + 1 >= LEAST_ROUNDS and time.perf_counter() - started > budget:
            break
    return {name: Times(values) for name, values in seconds.items()}
