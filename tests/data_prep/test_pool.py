"""Tests of data_prep.pool: every result comes, from one process or several, and a killed one is said."""

import os
import signal
from collections.abc import Iterator

import pytest

from data_prep.errors import DataError
from data_prep.pool import default_workers, unordered


def square(number: int) -> int:
    return number * number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def fail(number: int) -> int:
    raise ValueError(number)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_result(workers: int) -> None:
    assert sorted(unordered(square, range(20), workers)) == [n * n for n in range(20)]
    assert list(unordered(square, [], workers)) == []


def test_jobs_are_drawn_as_they_are_needed() -> None:
    drawn = []

    def jobs() -> Iterator[int]:
        for number in range(1000):
            drawn.append(number)
            yield number

    results = unordered(square, jobs(), 2)
    next(results)
    results.close()
    assert len(drawn) <= 8


def test_a_killed_process_is_said() -> None:
    with pytest.raises(DataError, match="a worker process was killed"):
        list(unordered(die, range(10), 2))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_comes_out(workers: int) -> None:
    with pytest.raises(ValueError, match="0"):
        list(unordered(fail, [0], workers))


def test_there_is_a_worker() -> None:
    assert default_workers() >= 1
