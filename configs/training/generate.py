"""Writes the LAION-400M recipes beside this file from one table: three sizes, each in two settings.

`laion400m-vit-b-16.toml` has OpenCLIP's setting for LAION-400M, `laion400m-vit-b-16-paper.toml` what is public about
that of arXiv 2604.10064.

    python configs/training/generate.py            # write
    python configs/training/generate.py --check    # exit 1 if a file differs from what would be written

Cost: none to speak of. tests/training/test_recipes.py runs the check.
"""

import argparse
import sys
import textwrap
from dataclasses import dataclass
from math import floor, log10, sqrt
from pathlib import Path

HERE = Path(__file__).parent
WIDTH = 118

GLOBAL_BATCH = 32768
EPOCH, EPOCHS = 400_000_000, 32
LR_B = 5e-4


@dataclass(frozen=True)
class Size:
    """What differs between the sizes. Batches are pairs; `paper_batch` is the paper's global batch on four GPUs."""

    letter: str
    batch_size: int  # per process
    batch_why: str
    lr: float
    lr_why: str
    grad_checkpointing: bool
    paper_batch: int


# OpenCLIP's own LAION-400M runs, the source of most values: its docs/PRETRAINED.md (GPUs, batches) and the LAION-400M
# command in its README (warm-up, epochs, loss options); what that leaves open is its trainer's default for ViTs.
SIZES = (
    Size(
        "s",
        512,
        "by proportion to B/16, not measured",
        LR_B,
        "OpenCLIP's default for every ViT. No run of ViT-S/16 at this scale is public that we know of.",
        False,
        64,
    ),
    Size(
        "b",
        256,
        "for GPUs of 80 GB: OpenCLIP trained B/16 with 192 on 40 GB",
        LR_B,
        "OpenCLIP's default for every ViT, and that of its LAION-400M command (which is for B/32).",
        False,
        16,
    ),
    Size(
        "l",
        128,
        "for GPUs of 80 GB: OpenCLIP trained L/14, which has more tokens, with 96 on 40 GB",
        4e-4,
        "What CLIP's paper (arXiv 2103.00020) gives for ViT-L/14, as we recall its table; OpenCLIP's default is 5e-4.",
        True,
        4,
    ),
)
FROM_PAPER = "OpenCLIP's default for ViTs, from CLIP's paper."
OURS = "Ours, not public: as in the recipe for large batches."
WRITTEN = "Written by configs/training/generate.py; change it there."
PAPER_GPUS = 4


def setting(name: str, value: str, reason: str) -> str:
    """A key with its reason above it; `value` is a TOML literal."""
    lines = textwrap.wrap(reason, WIDTH, initial_indent="# ", subsequent_indent="# ")
    return "\n".join([*lines, f"{name} = {value}\n"])


def number(value: float) -> str:
    """5e-4 rather than 0.0005."""
    power = floor(log10(value))
    return f"{value / 10**power:.2g}e{power}"


def laion(size: Size) -> str:
    """OpenCLIP's setting."""
    name, processes = f"ViT-{size.letter.upper()}-16", GLOBAL_BATCH // size.batch_size
    steps = EPOCHS * EPOCH // GLOBAL_BATCH
    head = f"""\
# {name} on LAION-400M, in OpenCLIP's setting: {steps:,} steps of {GLOBAL_BATCH:,} pairs, 12.8 billion in all.
# That is batch_size x processes x accum_freq = {size.batch_size} x {processes} x 1: as it stands, for {processes} GPUs.
# With fewer, keep the product: 8 GPUs take --accum-freq {processes // 8}. See docs/training.md.
# {WRITTEN}
"""
    settings = [
        ("model", f'"{name}-eq7mean"', "Any other kind: --model. This one's gain does not grow with the image."),
        ("output", f'"runs/laion400m-vit-{size.letter}-16"', "The run's folder, unless --output says otherwise."),
        ("batch_size", str(size.batch_size), f"Per process, {size.batch_why}. --dry-run estimates the memory."),
        (
            "accum_freq",
            "1",
            "The global batch is that of OpenCLIP's B/32 (128 x 256; its B/16 had 33,792, its L/14 38,400), and one "
            "for all sizes: losses over different batches cannot stand on one scaling curve.",
        ),
        ("train_num_samples", f"{EPOCH:_}", "An epoch, however many links are still alive: lengths stay comparable."),
        ("epochs", str(EPOCHS), "OpenCLIP's."),
        ("lr", number(size.lr), f"{size.lr_why} Not tuned for linear attention at this scale."),
        ("warmup", "2000", "Steps: OpenCLIP's LAION-400M command."),
        ("lr_scheduler", '"cosine"', "OpenCLIP's default."),
        ("wd", "0.2", "OpenCLIP's default."),
        ("beta1", "0.9", FROM_PAPER),
        ("beta2", "0.98", FROM_PAPER),
        ("eps", "1e-6", FROM_PAPER),
        (
            "precision",
            '"amp_bf16"',
            "OpenCLIP's default today. float16 (amp) takes loss scaling, and the literal eq7 can overflow in it.",
        ),
        (
            "local_loss",
            "true",
            "OpenCLIP's command. With gather_with_grad, our default, gradients stay exact, and the logits take memory "
            "linear in the number of GPUs.",
        ),
        ("grad_checkpointing", str(size.grad_checkpointing).lower(), "OpenCLIP's L/14 run had it on."),
        ("workers", "6", "About 660 JPEGs of 256 px were decoded a CPU-second: six feed 3,900 images/s to a GPU."),
    ]
    return "\n".join([head, *(setting(*one) for one in settings)])


def paper(size: Size) -> str:
    """What is public about the paper's setting; the rest is ours and says so."""
    name, batch = f"ViT-{size.letter.upper()}-16", size.paper_batch
    lr = size.lr * sqrt(batch / GLOBAL_BATCH)
    head = f"""\
# {name} on LAION-400M with the batch of arXiv 2604.10064: {batch} pairs over {PAPER_GPUS} GPUs.
# Public are the data, the batches (64, 16 and 4 for S, B and L), the GPUs (four A5500) and the evaluation
# (ImageNet-21K zero-shot). Not public: which towers are linear, the epochs, the learning rate, and the rest.
# A contrastive loss over a batch of another size is another quantity: to compare the sizes train with --val-data.
# {WRITTEN}
"""
    settings = [
        (
            "model",
            f'"{name}-eq7"',
            f"The paper's literal Eq. 7; in the vision tower alone is a guess: {name}-eq7-both.",
        ),
        ("output", f'"runs/laion400m-vit-{size.letter}-16-paper"', "The run's folder, unless --output says otherwise."),
        ("batch_size", str(batch // PAPER_GPUS), f"Per process: the paper's {batch} over {PAPER_GPUS} processes."),
        ("train_num_samples", f"{EPOCH:_}", "An epoch, however many links are still alive."),
        ("epochs", "1", f"Ours, not public: {EPOCH // batch:,} steps. --max-steps for a shorter run."),
        (
            "lr",
            number(lr),
            f"Ours, not public, not tried: {number(size.lr)} at {GLOBAL_BATCH:,} pairs times the square root of the "
            "batches' ratio.",
        ),
        ("warmup", "2000", OURS),
        ("wd", "0.2", OURS),
        ("beta1", "0.9", OURS),
        ("beta2", "0.98", OURS),
        ("eps", "1e-6", OURS),
        ("precision", '"amp_bf16"', "Ours; the A5500 has bf16."),
        ("workers", "2", "Ours: steps this small ask for few pictures a second."),
    ]
    return "\n".join([head, *(setting(*one) for one in settings)])


def generate() -> dict[str, str]:
    """Every recipe's text by file name."""
    texts = {}
    for size in SIZES:
        texts[f"laion400m-vit-{size.letter}-16.toml"] = laion(size)
        texts[f"laion400m-vit-{size.letter}-16-paper.toml"] = paper(size)
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write the LAION-400M recipes.", epilog="example: python configs/training/generate.py --check"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    check = parser.parse_args().check
    wanted = {HERE / name: text for name, text in generate().items()}
    changed = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    for path in changed:
        print(f"{'differs' if check else 'written'}: {path.name}")
        if not check:
            path.write_text(wanted[path])
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
