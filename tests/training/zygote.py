"""Runs of `python -m training` as real processes without paying for the imports each time.

A process that has imported everything forks one child a run (two under `world=2`, joined by gloo); the children are
processes of their own, which tests kill for real. Used as a module by the tests and as the program itself.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Ended:
    """A run that is over: each process's exit code (negative: the signal that killed it) and all output."""

    codes: list[int]
    output: str


@dataclass
class Zygote:
    """Starts runs. Use `run` for a whole one, or `start` and `lines` to watch one and send it signals."""

    process: subprocess.Popen[str] = field(init=False)
    pids: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start(self, *words: object, world: int = 1) -> None:
        assert self.process.stdin
        self.pids, self.codes = [], []
        self.process.stdin.write(json.dumps({"words": [str(w) for w in words], "world": world}) + "\n")
        self.process.stdin.flush()

    def lines(self) -> Iterator[str]:
        """The run's lines until all its processes are over; `pids` is set with the first, `codes` with the last."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("ZYGOTE-PIDS "):
                self.pids = json.loads(line.split(" ", 1)[1])
            elif "ZYGOTE-CODES " in line:  # a killed child may have left half a line before it
                self.codes = json.loads(line.split("ZYGOTE-CODES ", 1)[1])
                return
            else:
                yield line
        raise AssertionError("the zygote died")

    def run(self, *words: object, world: int = 1) -> Ended:
        self.start(*words, world=world)
        output = "".join(self.lines())
        return Ended(self.codes, output)

    def run_until(self, seen: str, number: int, *words: object, world: int = 1, rank: int = 0) -> Ended:
        """Send signal `number` to process `rank` when a line holds `seen`; with SIGKILL its peers are killed too."""
        self.start(*words, world=world)
        output = ""
        for line in self.lines():
            if seen in line and seen not in output:
                targets = self.pids if number == signal.SIGKILL else [self.pids[rank]]
                for pid in targets:
                    os.kill(pid, number)
            output += line
        return Ended(self.codes, output)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _child(words: list[str], rank: int, world: int, port: int) -> int:
    from training.__main__ import main

    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.argv = ["training", *words]
    try:
        return main()
    except SystemExit as end:
        return int(end.code or 0)


def serve() -> None:
    import training.__main__  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        port, pids = _free_port(), []
        for rank in range(request["world"]):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = _child(request["words"], rank, request["world"], port)
                except BaseException:
                    import traceback

                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            pids.append(pid)
        print("ZYGOTE-PIDS " + json.dumps(pids), flush=True)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print("ZYGOTE-CODES " + json.dumps(codes), flush=True)


if __name__ == "__main__":
    serve()
