"""Many pictures through a model, decoded by threads and shared by the ranks.

Threads, because Pillow and torch let go of the interpreter while they work, and because they leave alone what a
training run depends on: no fork of a process that holds a GPU, and no draw from a random generator.

Cost: one forward pass a picture; two batches of pixels wait in memory beside the one being encoded.

Legend: N pictures, B of a batch.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from evaluate.errors import RefusedError
from evaluate.ranks import rank_and_size, shared_rows, union

AHEAD = 2  # batches decoded in advance
MOST_BAD = 0.01  # share of unreadable pictures above which the result would describe another data set

Picture = Image.Image | Tensor
Preprocess = Callable[[Any], Tensor]  # of what opens pictures gives: Pillow's, or (3, H, W) uint8
OpenPicture = Callable[[int], Picture]


@dataclass(frozen=True)
class BadImage:
    """A picture that could not be decoded: counted and named in the result, never dropped silently."""

    shard: str
    key: str
    reason: str


@contextmanager
def full_float32(model: nn.Module) -> Iterator[None]:
    """Inference in eval mode, in float32 proper: no autocast, no TF32. Puts everything back, also after an error.

    ``no_grad`` and not ``inference_mode``: what a model in training keeps of a pass (gathered shards, caches) must
    serve the next step's backward pass, which inference tensors cannot.
    """
    modes = [(module, module.training) for module in model.modules()]  # a locked tower may differ from the rest
    matmul, conv = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    device_type = next(model.parameters()).device.type
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(device_type, enabled=False):
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, conv


def picture_rows(
    open_picture: OpenPicture,
    names: Sequence[tuple[str, str]],
    preprocess: Preprocess,
    rows_of: Callable[[range, Tensor], Tensor],
    *,
    batch_size: int,
    threads: int,
    most_bad: float = MOST_BAD,
    advance: Callable[[int], object] = lambda count: None,
) -> tuple[Tensor, list[BadImage], list[int]]:
    """Rows of N pictures, each computed by one of the ranks.

    Args:
        open_picture: picture number → decoded picture; what it raises makes the picture an unreadable one.
        names: (folder or shard, key) of each picture, length N ≥ 1.
        preprocess: picture → (3, H, W) float32.
        rows_of: picture numbers and pixels (B, 3, H, W) float32 → (B, width). In place of an unreadable picture stands
            a black one, so that batches are what they are on every number of ranks.
        most_bad: share of unreadable pictures above which there is no result.
        advance: told how many pictures were encoded by this rank.

    Returns:
        rows (N, width), the unreadable pictures, and the numbers of the readable ones; the same on every rank.

    Raises:
        RefusedError: more than `most_bad` of the pictures are unreadable; on every rank, alone as soon as they are.
    """
    blank = preprocess(Image.new("RGB", (32, 32)))
    bad: dict[int, str] = {}

    def load(number: int) -> Tensor:
        try:
            return preprocess(open_picture(number))
        except Exception as error:  # Pillow raises many kinds for damaged input; all mean the same here
            bad[number] = " ".join(str(error).split()) or type(error).__name__
            return blank

    def compute(batches: Iterator[range]) -> Iterator[Tensor]:
        for batch, pixels in loaded_ahead(pool, load, batches):
            if rank_and_size()[1] == 1:
                refuse_many_bad(names, dict(bad), most_bad)  # threads add to it
            yield rows_of(batch, torch.stack(pixels))
            advance(len(batch))

    with ThreadPoolExecutor(threads) as pool:
        rows = shared_rows(len(names), batch_size, compute)
    reasons = union(bad)
    refuse_many_bad(names, reasons, most_bad)
    unreadable = [BadImage(*names[number], reason) for number, reason in reasons.items()]
    return rows, unreadable, [number for number in range(len(names)) if number not in reasons]


def refuse_many_bad(names: Sequence[tuple[str, str]], reasons: Mapping[int, str], most_bad: float) -> None:
    """Raise RefusedError where more than `most_bad` of the pictures are unreadable; `reasons` by their numbers."""
    if len(reasons) <= most_bad * len(names):
        return
    first = sorted(reasons)[:3]
    named = ", ".join(f"{': '.join(names[number])} ({reasons[number]})" for number in first)
    raise RefusedError(
        f"{len(reasons)} of {len(names)} pictures cannot be read, more than {100 * most_bad:g} %: {named}. "
        "Copy or build the data again."
    )


def loaded_ahead(
    pool: ThreadPoolExecutor, load: Callable[[int], Tensor], batches: Iterable[range]
) -> Iterator[tuple[range, list[Tensor]]]:
    """Each batch with what `load` gives for its numbers; at most `AHEAD` batches are loaded before they are asked for.

    Raises whatever `load` raises.
    """
    waiting: deque[tuple[range, list[Future[Tensor]]]] = deque()
    for batch in batches:
        waiting.append((batch, [pool.submit(load, number) for number in batch]))
        if len(waiting) > AHEAD:
            oldest, futures = waiting.popleft()
            yield oldest, [future.result() for future in futures]
    for batch, futures in waiting:
        yield batch, [future.result() for future in futures]
