"""The command: makes the metadata, starts the server, runs data_prep and a training, and takes account."""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.laion_sample.account import as_text, read_log, take_account
from benchmarks.laion_sample.causes import ROWS
from benchmarks.laion_sample.pictures import Pictures
from benchmarks.laion_sample.rows import make_rows, write_metadata
from data_prep import atomic
from data_prep.errors import DataError

EMOJI = Path("data/emoji/train")
OUTPUT = Path("runs/laion-sample")
PARTS = ("metadata", "server.jsonl", "laion", "guard", "training", "result.json")  # what the command leaves, in order
GUARDED = 100  # rows that are asked for once more, without leave to ask inside a network
STEPS = 20
# The server is in this machine: --allow-private. Waits that suit it, and shards of which 2,000 rows make several.
PLAN = ("--allow-private", "--shard-size", "250", "--shards-per-part", "8")
WAITS = ("--timeout", "4", "--deadline", "8", "--stall", "60")


def run_commands(output: Path) -> list[list[str]]:
    """The lines that make the data set: all that comes, then what was busy, then both together."""
    metadata, place = ["--metadata", str(output / "metadata")], ["--output", str(output / "laion")]
    whole = ["data_prep", "run", *metadata, *place, *PLAN, *WAITS]
    return [whole, ["data_prep", "retry", *place, "--allow-private", *WAITS], whole]


def guard_commands(output: Path) -> list[list[str]]:
    """The lines that ask for some of the same rows without --allow-private; nothing may come, or reach the server."""
    place = ["--output", str(output / "guard")]
    plan = ["data_prep", "plan", "--metadata", str(output / "metadata"), *place, *PLAN, "--max-rows", str(GUARDED)]
    return [plan, ["data_prep", "download", *place, *WAITS, "--min-success", "0", "--json"]]


def training_command(output: Path) -> list[str]:
    """A short training on the manifest, of the quickstart's model."""
    recipe = ["training", "--config", "configs/training/quickstart.toml", "--unique-key", ""]
    length = ["--max-steps", str(STEPS), "--batch-size", "64", "--warmup", "2", "--log-every-n-steps", "1"]
    return [*recipe, *length, "--train-data", str(output / "laion" / "shards"), "--output", str(output / "training")]


@contextmanager
def serving(output: Path) -> Iterator[str]:
    """The server's address while the block runs."""
    words = ["--emoji", str(EMOJI), "--rows", str(ROWS), "--log", str(output / "server.jsonl")]
    command = [sys.executable, "-m", "benchmarks.laion_sample.server", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        if not address:
            raise DataError("the server did not start; what it said stands above")
        try:
            yield address
        finally:
            server.stdin.close()


def sample(output: Path) -> dict[str, Any]:
    """Everything, in order; returns what `result.json` holds.

    Raises:
        DataError: a command failed.
    """
    pictures = Pictures(EMOJI, ROWS)
    seconds: dict[str, float] = {}
    with serving(output) as address:
        rows = make_rows(pictures, address)
        write_metadata(rows, output / "metadata")
        for name, command in zip(("run", "retry", "run again"), run_commands(output), strict=True):
            seconds[name], _ = call(command)
        before = len(read_log(output / "server.jsonl"))
        plan, download = guard_commands(output)
        seconds["guard"], _ = call(plan)
        spent, said = call(download, listen=True)
        seconds["guard"] += spent
        reached = len(read_log(output / "server.jsonl")) - before
    account = take_account(rows, read_log(output / "server.jsonl"), output / "laion", pictures)
    seconds["training"], _ = call(training_command(output))
    guard = {"rows": GUARDED, "reasons": json.loads(said)["reasons"], "requests": reached}
    if guard != {"rows": GUARDED, "reasons": {"address refused": GUARDED}, "requests": 0}:
        account.differences.append(f"without --allow-private: {guard}")
    losses = [json.loads(line)["loss"] for line in (output / "training" / "metrics.jsonl").read_text().splitlines()]
    print(as_text(account))
    print(
        f"without --allow-private: of {GUARDED} rows {guard['reasons']}, {reached} requests\n"
        f"trained {len(losses)} steps on the samples, loss {losses[0]:.2f} to {losses[-1]:.2f}"
    )
    return {
        **asdict(account),
        "guard": guard,
        "losses": losses,
        "seconds": {name: round(spent, 1) for name, spent in seconds.items()},
    }


def call(command: Sequence[str], listen: bool = False) -> tuple[float, str]:
    """Run `python -m …`; returns its seconds and, where asked to `listen`, what it prints.

    Raises:
        DataError: it failed.
    """
    line = f"python -m {shlex.join(command)}"
    print(f"$ {line}", flush=True)
    # Where other work has the cores, threads that wait for each other would make minutes of the training's seconds.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, stdout=subprocess.PIPE if listen else None, text=True
    )
    if done.returncode:
        raise DataError(f"{line} ended with {done.returncode}; what it said stands above")
    return time.monotonic() - started, done.stdout or ""


def clear(output: Path) -> None:
    """Remove what an earlier call left: the server's port, and so every address, is another one each time."""
    output.mkdir(parents=True, exist_ok=True)
    for name in reversed(PARTS):
        path = output / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def check_setup() -> None:
    """That this Python can download, and the pictures are there.

    Raises:
        DataError: it cannot, or they are not.
    """
    if sys.version_info >= (3, 13):
        found = ".".join(map(str, sys.version_info[:2]))
        raise DataError(
            f"img2dataset, which downloads, imports a module that Python 3.13 removed, and this is {found}; "
            "remove .venv and give make laion-sample PYTHON=python3.11 (or python3.12)"
        )
    if not EMOJI.is_dir():
        raise DataError(f"no emoji set in {EMOJI.parent}; make laion-sample builds it")


def main() -> int:
    """The command line. Returns the exit code: 0 all rows accounted for, 1 not so or a command failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.laion_sample",
        description=f"{ROWS:,} rows of LAION-like metadata over a local server that misbehaves, through data_prep and "
        "a short training, with every row accounted for. Its earlier output is removed first.",
        epilog="exit code: 0 every row is accounted for, 1 one is not or a command failed, 130 interrupted",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="DIR", help="(default: %(default)s)")
    args = parser.parse_args()
    started = time.monotonic()
    try:
        check_setup()
        clear(args.output)
        result = sample(args.output)
        result["seconds"]["all"] = round(time.monotonic() - started, 1)
        atomic.write_text(args.output / "result.json", json.dumps(result, indent=1) + "\n")
        print(f"{result['seconds']['all']:.0f} s; look at {args.output / 'laion' / 'stats.html'}")
        if result["differences"]:
            raise DataError(f"{len(result['differences'])} things differ; they stand above and in result.json")
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command starts anew", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
