"""Image-text retrieval and the contrastive loss on held-out pairs; `python -m evaluate retrieval` and inside a run.

    pairs = read_pairs(Path("data/heldout/manifest.jsonl"))
    with full_float32(model):
        figures, bad = evaluate_pairs(model, tokenizer, preprocess, pairs, sigmoid=False, batch_size=64, device=device,
                                      threads=4)

Recall@k is the share of pictures with a caption of theirs among the k best of all captions, and of captions whose
picture is among the k best of all pictures, as CLIP_benchmark's zeroshot_retrieval and, with one caption a picture,
OpenCLIP's `get_clip_metrics` have it: an equal caption of another picture is wrong, so duplicates lower the figure's
ceiling. Equal scores rank in the pairs' order, so a collapsed model scores chance and not 100 %.
The loss is the training loss on all N pairs as one batch: it depends on N, and not on batch size or number of ranks.
Of pictures with several captions there is no such batch, and no loss.

Cost: one forward pass a picture and a caption in float32, then N x M cosines twice, of which at most QUERIES x ITEMS
are held at once. Encoding and cosines are shared by the ranks (`ranks.py`); each holds all features ((N + M) x D
float32: 4 GB for a million pairs of width 512).

Legend: N pictures, M captions, Q queries, K items among which they are searched, B and T of a block of those, D width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from evaluate.data.pairs import Pair
from evaluate.encode import MOST_BAD, BadImage, Preprocess, picture_rows
from evaluate.errors import RefusedError
from evaluate.metrics import wilson_interval
from evaluate.ranks import shared_batches
from evaluate.texts import Tokenizer, encode_texts

RECALLS = (1, 5, 10)
QUERIES, ITEMS = 512, 2048  # in a block: 4 MB of scores in float32; of 32 MB, a CPU takes three times as long for each


def evaluate_pairs(
    model: nn.Module,
    tokenizer: Tokenizer,
    preprocess: Preprocess,
    pairs: Sequence[Pair],
    *,
    sigmoid: bool,
    batch_size: int,
    device: torch.device,
    threads: int,
    most_bad: float = MOST_BAD,
    advance: Callable[[int], object] = lambda count: None,
) -> tuple[dict[str, float], list[BadImage]]:
    """Encode all pairs and score them; a pair whose picture cannot be read is left out, counted and named.

    Call it on every rank at once, inside `encode.full_float32`; the result is the same on every rank.

    Args:
        model: an OpenCLIP model with `encode_image`, `encode_text`, `logit_scale` and perhaps `logit_bias`.
        sigmoid: whether the loss is SigLIP's rather than CLIP's.
        threads: how many decode pictures.
        most_bad: share of unreadable pictures above which there is no result.
        advance: told how many pictures were encoded by this rank.

    Returns:
        figures as `figures_of` gives them with `pairs` (pictures), `captions` and `bad_images`, and the unreadable
        pictures.

    Raises:
        RefusedError: features that are not finite, or too many unreadable pictures; on every rank.
    """
    images_ND, bad, readable = picture_rows(
        lambda number: pairs[number].picture(),
        [(str(pair.place.file), pair.key) for pair in pairs],
        preprocess,
        lambda _, pixels_BCHW: model.encode_image(pixels_BCHW.to(device), normalize=True),  # type: ignore[operator]
        batch_size=batch_size,
        threads=threads,
        most_bad=most_bad,
        advance=advance,
    )
    if bad:
        images_ND, pairs = images_ND[readable], [pairs[number] for number in readable]
    captions = [caption for pair in pairs for caption in pair.captions]
    texts_MD = encode_texts(model, tokenizer, captions, device=device)
    for features, what in ((images_ND, "image"), (texts_MD, "text")):
        if not features.isfinite().all():
            raise RefusedError(f"retrieval: {what} features are NaN or infinite; the run has diverged")
    bias = getattr(model, "logit_bias", None)
    found = figures_of(
        images_ND,
        texts_MD,
        [len(pair.captions) for pair in pairs],
        scale=number_in(model.logit_scale.exp()),  # type: ignore[operator]
        bias=0.0 if bias is None else number_in(bias),
        sigmoid=sigmoid,
    )
    return found | {"pairs": len(pairs), "captions": len(captions), "bad_images": len(bad)}, bad


def number_in(parameter: Tensor) -> float:
    """The value of a one-element parameter, also of one that is sharded over the ranks (a collective call then)."""
    return float(parameter.full_tensor() if isinstance(parameter, DTensor) else parameter)


def figures_of(
    images_ND: Tensor, texts_MD: Tensor, captions: Sequence[int], *, scale: float, bias: float, sigmoid: bool
) -> dict[str, float]:
    """Recall in percent both ways and the loss, from unit features.

    Args:
        captions: how many captions each picture has, length N, each at least 1, sum M; the rows of `texts_MD` are the
            captions of the first picture, then those of the second, and so on.
        scale, bias: of the loss's logits, `scale * cosine + bias`.
        sigmoid: whether the loss is SigLIP's rather than CLIP's.

    Returns:
        `image_to_text_r1`, `_r5`, `_r10`, `text_to_image_r1`, `_r5`, `_r10`, and `loss` where each picture has one
        caption; the same on every rank.
    """
    counts_N = torch.tensor(captions)
    stops_N = counts_N.cumsum(0)
    owners_M = torch.arange(len(counts_N)).repeat_interleave(counts_N)
    loss = None if len(texts_MD) != len(images_ND) else Loss(scale, bias, sigmoid)
    by_picture_N2 = search(images_ND, texts_MD, stops_N - counts_N, stops_N, loss)
    by_caption_M2 = search(texts_MD, images_ND, owners_M, owners_M + 1, loss)
    result = {
        f"{name}_r{k}": 100.0 * int((rows[:, 0] < k).sum()) / len(rows)
        for name, rows in (("image_to_text", by_picture_N2), ("text_to_image", by_caption_M2))
        for k in RECALLS
    }
    if loss:
        result["loss"] = float((by_picture_N2[:, 1] + by_caption_M2[:, 1]).mean() / 2)
    return result


def intervals(figures: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Wilson's 95 % interval of each recall, in percent; captions of one picture count as independent."""
    counts = {"image_to_text": int(figures["pairs"]), "text_to_image": int(figures["captions"])}
    return {
        f"{way}_r{k}": wilson_interval(round(figures[f"{way}_r{k}"] * count / 100), count)
        for way, count in counts.items()
        for k in RECALLS
    }


class Loss:
    """The contrastive loss of queries, summed up over blocks of the items, in float64.

    CLIP's is logsumexp(z) - z of the right item; SigLIP's is the sum of softplus(z) less z of the right item, which is
    -log sigmoid(z) for the right one and -log sigmoid(-z) for each other.
    """

    def __init__(self, scale: float, bias: float, sigmoid: bool) -> None:
        self.scale, self.bias, self.sigmoid = scale, bias, sigmoid
        self.nothing = 0.0 if sigmoid else float("-inf")

    def add(self, total_B: Tensor, cosines_BT: Tensor) -> Tensor:
        """What `total_B` becomes with one more block of items."""
        logits_BT = self.scale * cosines_BT.double() + self.bias
        if self.sigmoid:
            return total_B + F.softplus(logits_BT).sum(dim=1)
        return torch.logaddexp(total_B, logits_BT.logsumexp(dim=1))

    def finish(self, total_B: Tensor, right_B: Tensor) -> Tensor:
        """The loss of each query from the total over all items and the cosine of its right one."""
        return total_B - (self.scale * right_B.double() + self.bias)


def search(queries_QD: Tensor, items_KD: Tensor, starts_Q: Tensor, stops_Q: Tensor, loss: Loss | None) -> Tensor:
    """Where each query's best right item stands among all items, shared by the ranks.

    Args:
        starts_Q, stops_Q: on the CPU; items starts[q] to stops[q] - 1 are right for query q. Neither falls from one
            query to the next.
        loss: of which to give the value; for queries with one right item.

    Returns:
        (Q, 2) float64 on the CPU: how many items come before the best right one in a stable sort by falling score (0 is
        best), and the loss, 0 without one.
    """
    blocks = spans(len(items_KD), ITEMS)

    def compute(batches: Iterator[range]) -> Iterator[Tensor]:
        for batch in batches:
            queries_BD, starts_B, stops_B = (x[batch.start : batch.stop] for x in (queries_QD, starts_Q, stops_Q))
            near = [block for block in blocks if block.stop > starts_B[0] and block.start < stops_B[-1]]
            best_B1, at_B1 = best_right(queries_BD, items_KD, near, starts_B, stops_B)
            before_B = torch.zeros_like(at_B1[:, 0])
            total_B = torch.full_like(best_B1[:, 0], loss.nothing if loss else 0.0, dtype=torch.float64)
            for block in blocks:
                cosines_BT = queries_BD @ items_KD[block.start : block.stop].T
                before_B += count_before(cosines_BT, best_B1, at_B1 - block.start)
                if loss:
                    total_B = loss.add(total_B, cosines_BT)
            yield torch.stack([before_B.double(), loss.finish(total_B, best_B1[:, 0]) if loss else total_B], dim=1)

    return shared_batches(spans(len(queries_QD), QUERIES), compute).cpu()


def spans(count: int, most: int) -> list[range]:
    """`count` items in consecutive blocks of at most `most`, whose lengths differ by one.

    Of a narrower last block the same cosine may come out of another kernel with another last bit, and equal items would
    not tie.
    """
    blocks = -(-count // most)
    return [range(count * i // blocks, count * (i + 1) // blocks) for i in range(blocks)]


def best_right(
    queries_BD: Tensor, items_KD: Tensor, blocks: Sequence[range], starts_B: Tensor, stops_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Score and number of each query's best right item, the first of equal ones: (B, 1) and int64 (B, 1).

    The scores come from the same products of blocks with which they are compared later, to the last bit.
    """
    device = queries_BD.device
    starts_B1, stops_B1 = starts_B[:, None].to(device), stops_B[:, None].to(device)
    best_B1 = queries_BD.new_full((len(queries_BD), 1), float("-inf"))
    at_B1 = starts_B1
    for block in blocks:
        numbers_T = torch.arange(block.start, block.stop, device=device)
        right_BT = (numbers_T >= starts_B1) & (numbers_T < stops_B1)
        scores_BT = (queries_BD @ items_KD[block.start : block.stop].T).masked_fill_(~right_BT, float("-inf"))
        here_B1 = scores_BT.amax(dim=1, keepdim=True)
        first_B1 = torch.where(scores_BT == here_B1, numbers_T, len(items_KD)).amin(dim=1, keepdim=True)
        at_B1 = torch.where(here_B1 > best_B1, first_B1, at_B1)
        best_B1 = torch.maximum(here_B1, best_B1)
    return best_B1, at_B1


def count_before(scores_BT: Tensor, best_B1: Tensor, at_B1: Tensor) -> Tensor:
    """How many of a block's items have a greater score, or the same and a column before `at_B1`: int32 (B,)."""
    earlier_BT = torch.arange(scores_BT.shape[1], device=scores_BT.device) < at_B1
    return ((scores_BT > best_B1) | ((scores_BT == best_B1) & earlier_BT)).sum(dim=1, dtype=torch.int32)
