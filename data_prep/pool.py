"""Worker processes that end with the process that started them, and that nothing can make wait for ever.

for result in unordered(check, jobs, workers=8): ...
"""

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


def default_workers() -> int:
    """One process for each core this process may use."""
    return len(os.sched_getaffinity(0))


def new_pool(workers: int) -> ProcessPoolExecutor:
    """A pool whose processes are fresh interpreters; the caller shuts it down."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=end_with_parent)


def unordered(function: Callable[[Job], Result], jobs: Iterable[Job], workers: int) -> Iterator[Result]:
    """`function` of each job, as they are done; one worker means this process itself.

    Jobs are drawn as workers become free, so there may be millions.

    Raises:
        DataError: a process was killed, most likely for memory; what was yielded before is good.
    """
    if workers == 1:
        yield from map(function, jobs)
        return
    rest = iter(jobs)
    pool = new_pool(workers)
    try:
        running: set[Future[Result]] = {pool.submit(function, job) for job in islice(rest, 2 * workers)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(function, job) for job in islice(rest, len(done))}
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise DataError("a worker process was killed (memory?); run again with fewer --workers") from None
    finally:
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
