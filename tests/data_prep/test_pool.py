"""Tests of data_prep.pool: every result comes, from one process or several, and a killed one is said."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


INTERRUPTED = """
import signal, sys
from data_prep.__main__ import main
from data_prep.commands import check
from data_prep.commands.download import interrupt_on_term
from data_prep.pool import unordered
from test_pool import wait_or_square

def run(args):
    interrupt_on_term()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for result in unordered(wait_or_square, range(1000), 2):
        print(result, flush=True)

if __name__ == "__main__":
    check.run = run
    sys.exit(main(["check", "nothing"]))
"""


STARTING = """
import os, signal
from data_prep.pool import unordered
from test_pool import square

if __name__ == "__mp_main__":
    os.kill(os.getpid(), signal.SIGINT)
if __name__ == "__main__":
    print(sorted(unordered(square, range(3), 2)))
"""


def environment() -> dict[str, str]:
    """For a script that imports data_prep and this file."""
    here = Path(__file__).parent
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here)])}


def test_an_interrupt_of_a_worker_that_starts(tmp_path: Path) -> None:
    """It reaches the whole process group, and is the parent's to answer."""
    script = tmp_path / "script.py"
    script.write_text(STARTING)
    words = [sys.executable, script]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 4]\n", "")


def wait_or_square(number: int) -> int:
    if number > 3:
        signal.pause()
    return square(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("signals", [1, 2, 30])
def test_interrupts_end_it_however_many_come(tmp_path: Path, number: int, signals: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, script], env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(signals):
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05 if signals == 2 else 0.001)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert said == "interrupted; nothing half-built is left, run the same command again\n"


def test_there_is_a_worker() -> None:
    assert default_workers() >= 1
