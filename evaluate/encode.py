"""Many pictures and texts through a model, decoded by threads and shared by the ranks.

Threads, because Pillow and torch let go of the interpreter while they work, and because they leave alone what a
training run depends on: no fork of a process that holds a GPU, and no draw from a random generator.

Cost: one forward pass a picture or text; two batches of pixels wait in memory beside the one being encoded.

Legend: N items, B of a batch, D embedding width.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor, nn

from evaluate.errors import RefusedError
from evaluate.ranks import shared_rows, union
from evaluate.texts import Tokenizer

AHEAD = 2  # batches decoded in advance
MOST_BAD = 0.01  # share of unreadable pictures above which the result would describe another data set

OpenPicture = Callable[[int], Image.Image]
Preprocess = Callable[[Image.Image], Tensor]


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
    advance: Callable[[int], object] = lambda count: None,
) -> tuple[Tensor, list[BadImage], list[int]]:
    """Rows of N pictures, each computed by one of the ranks.

    Args:
        open_picture: picture number → decoded picture; what it raises makes the picture an unreadable one.
        names: (folder or shard, key) of each picture, length N ≥ 1.
        preprocess: picture → (3, H, W) float32.
        rows_of: picture numbers and pixels (B, 3, H, W) float32 → (B, width). In place of an unreadable picture stands
            a black one, so that batches are what they are on every number of ranks.
        advance: told how many pictures were encoded by this rank.

    Returns:
        rows (N, width), the unreadable pictures, and the numbers of the readable ones; the same on every rank.

    Raises:
        RefusedError: more than `MOST_BAD` of the pictures are unreadable; on every rank.
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
            yield rows_of(batch, torch.stack(pixels))
            advance(len(batch))

    with ThreadPoolExecutor(threads) as pool:
        rows = shared_rows(len(names), batch_size, compute)
    reasons = union(bad)
    unreadable = [BadImage(*names[number], reason) for number, reason in reasons.items()]
    if len(unreadable) > MOST_BAD * len(names):
        named = ", ".join(f"{b.shard}: {b.key} ({b.reason})" for b in unreadable[:3])
        raise RefusedError(
            f"{len(unreadable)} of {len(names)} pictures cannot be read, more than {MOST_BAD:.0%}: {named}. "
            "Copy or build the data again."
        )
    return rows, unreadable, [number for number in range(len(names)) if number not in reasons]


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


def encode_texts(
    model: nn.Module, tokenizer: Tokenizer, texts: Sequence[str], *, batch_size: int, device: torch.device
) -> Tensor:
    """Unit text features (N, D) on `device`, each computed by one of the ranks; the same on every rank."""

    def compute(batches: Iterator[range]) -> Iterator[Tensor]:
        for batch in batches:
            tokens_BL = tokenizer([texts[number] for number in batch]).to(device)
            yield model.encode_text(tokens_BL, normalize=True)  # type: ignore[operator]

    return shared_rows(len(texts), batch_size, compute)
