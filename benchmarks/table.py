"""`make table`: the quickstart's model in every kind, two seeds each, and the table of it in docs/kinds.md.

    python -m benchmarks.table            # run what is missing, then write the table
    python -m benchmarks.table --dry-run  # what would be run

Protocol: the quickstart's recipe at 300 steps. Each kind's learning rate is the best of three by runs of a quarter of
the steps on a set whose held-out vendor is another one (emojione); the test vendor (Twemoji) takes no part in it. Each
trained model is then evaluated at the training size and at 1.5 and 2 times it. A run that is there is not repeated;
one that was made by another command is refused. Speed is measured last, all kinds interleaved in one process.
Cost: about 4 minutes a run on two free cores, 1 minute a learning-rate run: 2 hours in all.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import open_clip
import torch
from open_clip.loss import ClipLoss

import open_clip_linear  # noqa: F401 -- registers the models
from data_prep import atomic
from training.precision import autocast, computes_in_bf16

KINDS = ("softmax", "eq4", "eq4half", "eq7", "eq7mean", "eq7learned", "sema", "inline", "hybrid")
SEEDS = (0, 1)
RATES = ("3e-3", "9e-3", "2.7e-2")  # 1e-3 was worse than 3e-3 for every kind
STEPS = 300
LOSS_AT = (75, 150, 300)
SIZES = (48, 72, 96)  # the first is the training size
RUNS = Path("runs/table")
TRAIN, VALIDATION = Path("data/emoji"), Path("data/emoji-val")
PAGE = Path("docs/kinds.md")
BEGIN, END = "<!-- table: written by benchmarks/table.py -->", "<!-- end of table -->"


class TableError(RuntimeError):
    """The table cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class Run:
    """One training with its evaluations, in a folder of its own."""

    kind: str
    seed: int
    rate: str
    steps: int
    data: Path
    sizes: tuple[int, ...]
    folder: Path

    @property
    def training(self) -> list[str]:
        """The training command, from `-m` on."""
        return [
            *("-m", "training", "--config", "configs/training/quickstart.toml", "--model", f"tiny-emoji-{self.kind}"),
            *("--train-data", str(self.data / "train"), "--max-steps", str(self.steps)),
            *("--warmup", str(self.steps // 10), "--lr", self.rate, "--seed", str(self.seed)),
            *("--log-every-n-steps", "1", "--output", str(self.folder)),
        ]

    def result(self, size: int) -> Path:
        return self.folder / f"zero-shot-{size}.json"

    def evaluation(self, size: int) -> list[str]:
        """The evaluation command at an image size, from `-m` on."""
        return [
            *("-m", "evaluate", "zero-shot", "--model", f"tiny-emoji-{self.kind}"),
            *("--pretrained", str(self.folder / "checkpoint.pt"), "--dataset", "emoji", "--root", str(self.data)),
            *("--image-size", str(size), "--output", str(self.result(size))),
        ]

    def missing(self) -> list[list[str]]:
        """The commands that have not left their output yet."""
        commands = [] if (self.folder / "checkpoint.pt").exists() else [self.training]
        return commands + [self.evaluation(size) for size in self.sizes if commands or not self.result(size).exists()]

    def do(self) -> None:
        """Run what is missing. Raises TableError where a command fails or the folder holds another command's run."""
        missing = self.missing()
        if self.folder.exists() and missing[:1] != [self.training]:
            self.check_maker()
        if missing[:1] == [self.training]:
            for size in self.sizes:  # of an earlier checkpoint
                self.result(size).unlink(missing_ok=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            note = self.folder / "made-by.json"
            atomic.write_text(note, json.dumps({"command": self.training, "commit": commit()}, indent=2) + "\n")
        for command in missing:
            print(f"$ python {shlex.join(command)}", flush=True)
            with open(self.folder / "log.txt", "a") as log:
                code = subprocess.run([sys.executable, *command], stdout=log).returncode
            if code:
                raise TableError(f"the command ended with {code}; its output stands in {self.folder / 'log.txt'}")
        self.check_maker()

    def check_maker(self) -> None:
        """Raise TableError where the folder holds another command's run, or what it holds cannot be read."""
        try:
            maker = json.loads((self.folder / "made-by.json").read_text())["command"]
            self.losses()
            for size in self.sizes:
                if self.result(size).exists():
                    self.accuracy(size)
        except (OSError, ValueError, KeyError) as error:
            raise TableError(f"{self.folder} is damaged ({error!r}); remove it to make it again") from error
        if maker != self.training:
            raise TableError(f"{self.folder} was made by another command; remove it to make it again")

    @property
    def commit(self) -> str:
        return str(json.loads((self.folder / "made-by.json").read_text())["commit"])

    def accuracy(self, size: int, which: str = "heldout_vendor") -> tuple[float, float]:
        """Top-1 and top-5 in percent."""
        found = json.loads(self.result(size).read_text())["results"][which]
        return found["top1"], found["top5"]

    def losses(self) -> list[float]:
        """The loss around each step of LOSS_AT: the mean of the ten batches up to it."""
        rows = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        loss = {row["step"]: row["loss"] for row in rows}
        return [statistics.mean(loss[s] for s in range(step - 9, step + 1)) for step in LOSS_AT if step <= self.steps]


def commit() -> str:
    """The commit of the checkout, marked where files differ from it."""
    try:
        found = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=7"], capture_output=True, text=True)
    except OSError:  # no git here
        return "unknown"
    return found.stdout.strip() or "unknown"


def search_runs(kind: str) -> list[Run]:
    """The short runs that choose a kind's learning rate."""
    return [Run(kind, 0, rate, STEPS // 4, VALIDATION, SIZES[:1], RUNS / "rates" / f"{kind}-{rate}") for rate in RATES]


def best_rate(kind: str) -> str:
    """The learning rate with the best top-1 on the validation vendor; top-5 decides between equals."""
    return max(search_runs(kind), key=lambda run: run.accuracy(SIZES[0])).rate


def final_runs(kind: str, rate: str) -> list[Run]:
    return [Run(kind, seed, rate, STEPS, TRAIN, SIZES, RUNS / f"{kind}-{seed}") for seed in SEEDS]


def measure_speed(rounds: int = 7, batch: int = 128) -> dict[str, list[float]]:
    """Images/s of forward and backward at each size, all kinds in turn in one process: medians by kind.

    The median over rounds of a kind's time relative to softmax in the same round, times softmax's median: what
    else the machine does meanwhile falls on all kinds alike.
    """
    device = torch.device("cpu")
    precision = "amp_bf16" if computes_in_bf16(device) else "fp32"
    texts = torch.randint(1, 49408, (batch, 16))
    speeds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for size in (SIZES[0], SIZES[-1]):
        models = {
            k: open_clip.create_model(f"tiny-emoji-{k}", force_image_size=size, output_dict=True).train() for k in KINDS
        }
        images, loss_of = torch.randn(batch, 3, size, size), ClipLoss()
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(rounds + 1):  # the first warms up and is dropped
            for kind, model in models.items():
                started = time.perf_counter()
                with autocast(precision, device):
                    loss = loss_of(**model(images, texts))
                loss.backward()
                seconds[kind].append(time.perf_counter() - started)
                model.zero_grad()
        base = seconds["softmax"][1:]
        for kind in KINDS:
            ratio = statistics.median(s / b for s, b in zip(seconds[kind][1:], base, strict=True))
            speeds[kind].append(batch / (ratio * statistics.median(base)))
    return speeds


def table(runs: dict[str, list[Run]], speeds: dict[str, list[float]]) -> str:
    """The generated part of the page."""
    commits = sorted({run.commit for pair in runs.values() for run in pair})
    sizes = " | ".join(f"{size} px top-1 / top-5" for size in SIZES)
    steps, ends = " / ".join(map(str, LOSS_AT)), f"{SIZES[0]} / {SIZES[-1]}"
    lines = [
        BEGIN,
        f"`make table`, runs at {', '.join(f'commit {c}' for c in commits)}; torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads. Two values are seeds {SEEDS[0]} and {SEEDS[1]}. Loss: mean of the ten "
        f"batches up to a step. Accuracy in percent on the held-out vendor ({len_of(runs)} pictures and classes).",
        "",
        f"| kind | lr | loss at step {steps} | {sizes} | images/s {ends} px |",
        "|" + "---|" * (len(SIZES) + 4),
    ]
    for kind, pair in runs.items():
        losses = "<br>".join(" / ".join(f"{loss:.2f}" for loss in run.losses()) for run in pair)
        cells = ["<br>".join("{:.1f} / {:.1f}".format(*run.accuracy(size)) for run in pair) for size in SIZES]
        speed = " / ".join(f"{s:.0f}" for s in speeds[kind])
        lines.append(f"| `{kind}` | {pair[0].rate} | {losses} | {' | '.join(cells)} | {speed} |")
    lines += ["", "Learning rates, top-1 / top-5 on the validation vendor:", ""]
    lines += [f"| kind | {' | '.join(f'lr {rate}' for rate in RATES)} |", "|" + "---|" * (len(RATES) + 1)]
    for kind in runs:
        cells = ["{:.1f} / {:.1f}".format(*run.accuracy(SIZES[0])) for run in search_runs(kind)]
        lines.append(f"| `{kind}` | {' | '.join(cells)} |")
    return "\n".join([*lines, END])


def len_of(runs: dict[str, list[Run]]) -> int:
    first = next(iter(runs.values()))[0]
    return int(json.loads(first.result(SIZES[0]).read_text())["results"]["heldout_vendor"]["n"])


def write_page(block: str) -> None:
    """Put the generated part between its marks in docs/kinds.md; what people wrote around it stays."""
    text = read_page()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    atomic.write_text(PAGE, before + block + after)


def read_page() -> str:
    """docs/kinds.md. Raises TableError where the marks of the generated part are gone."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else f"{BEGIN}\n{END}\n"
    if END not in text.partition(BEGIN)[2]:
        raise TableError(f"{PAGE} has lost the marks {BEGIN!r} and {END!r}; put them back where the table belongs")
    return text


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.table",
        description="Train the quickstart's model in every attention kind and write the table in docs/kinds.md.",
        epilog="example: python -m benchmarks.table --dry-run",
    )
    result.add_argument("--dry-run", action="store_true", help="print the commands of the runs that are missing")
    return result


def main() -> int:
    dry = parser().parse_args().dry_run
    try:
        missing = [folder for folder in (TRAIN, VALIDATION) if not (folder / "README.md").exists()]
        if missing:
            raise TableError(f"no emoji set in {' and '.join(map(str, missing))}; `make table` builds it")
        read_page()  # lost marks are cheap to find now
        runs = {}
        for number, kind in enumerate(KINDS, 1):
            print(f"{kind}, {number} of {len(KINDS)}: learning rates", flush=True)
            for run in search_runs(kind):
                show(run) if dry else run.do()
        for number, kind in enumerate(KINDS, 1):
            undecided = dry and any(run.missing() for run in search_runs(kind))
            rate = RATES[0] if undecided else best_rate(kind)
            runs[kind] = final_runs(kind, rate)
            print(f"{kind}, {number} of {len(KINDS)}: lr {'to be chosen' if undecided else rate}", flush=True)
            for run in runs[kind]:
                show(run) if dry else run.do()
        if not dry:
            write_page(table(runs, measure_speed()))
            print(f"written: {PAGE}")
    except TableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def show(run: Run) -> None:
    for command in run.missing():
        print(f"  python {shlex.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
