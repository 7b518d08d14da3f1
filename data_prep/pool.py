"""Worker processes that end with the process that started them, and that nothing can make wait for ever.

for result in unordered(check, jobs, workers=8): ...
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from data_prep.errors import DataError

Job = TypeVar("Job")
Result = TypeVar("Result")
_POLL = 0.1  # seconds after which an interrupt is noticed


def default_workers() -> int:
    """One process for each core this process may use."""
    return len(os.sched_getaffinity(0))


def _new_pool(workers: int) -> ProcessPoolExecutor:
    """A pool whose processes are fresh interpreters; the caller shuts it down."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=end_with_parent)


def unordered(function: Callable[[Job], Result], jobs: Iterable[Job], workers: int) -> Iterator[Result]:
    """`function` of each job, as they are done; one worker means this process itself.

    Jobs are drawn as workers become free, so there may be millions.

    Raises:
        DataError: a process was killed, most likely for memory; what was yielded before is good.
        KeyboardInterrupt: the first of any number of interrupts, once the processes are ended.
    """
    if workers == 1:
        yield from map(function, jobs)
        return
    rest = iter(jobs)
    with _held_back() as interrupts:
        pool = _new_pool(workers)
        try:
            running = {_submit(pool, function, job) for job in islice(rest, 2 * workers)}
            while running and not interrupts:
                done, running = wait(running, _POLL, FIRST_COMPLETED)
                running |= {_submit(pool, function, job) for job in islice(rest, len(done))}
                for future in done:
                    yield future.result()
        except BrokenProcessPool:
            if not interrupts:  # which may have reached the workers too
                raise DataError("a worker process was killed (memory?); run again with fewer --workers") from None
        finally:
            _end(pool)


def _submit(pool: ProcessPoolExecutor, function: Callable[[Job], Result], job: Job) -> Future[Result]:
    """Submit a job with SIGINT blocked, as a worker that this starts keeps it.

    It would answer a keyboard interrupt with a traceback before `end_with_parent` has it pass over them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(function, job)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _held_back() -> Iterator[list[int]]:
    """Collect the interrupts that come in this block; they are raised, as one, where it ends.

    Raised within the executor, or while it is ended, they would leave it waiting for ever. Once one came, those after
    the block are passed over: the process ends.
    """
    came: list[int] = []
    ours = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is signal.default_int_handler]
    for number in ours:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_IGN if came else signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def _end(pool: ProcessPoolExecutor) -> None:
    """End the workers, whatever they are at: a shard may take a minute, and nobody wants its result any more."""
    for process in list((pool._processes or {}).values()):
        process.kill()
        process.join()
    # A killed worker may have sent half a result; the pool's thread waits for the rest until nobody can write it.
    pool._result_queue._writer.close()  # type: ignore[attr-defined]
    pool.shutdown(cancel_futures=True)


def end_with_parent() -> None:
    """End this worker when its parent is killed; it would wait for work for ever otherwise.

    A keyboard interrupt reaches the whole process group: the parent answers it, and ends the workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait_for_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()
