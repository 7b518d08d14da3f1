"""Image-text retrieval and the contrastive loss on held-out pairs; `python -m evaluate retrieval` and inside a run.

    pairs = read_pairs(Path("data/heldout/manifest.jsonl"))
    with full_float32(model):
        figures, bad = evaluate_pairs(model, tokenizer, preprocess, pairs, sigmoid=False, batch_size=64, device=device,
                                      threads=4)

Recall@k is the share of pictures whose own caption is among the k best of all captions, and of captions whose own
picture is among the k best of all pictures. Only a pair's own partner is right, as in OpenCLIP's `get_clip_metrics`:
an equal caption of another picture is wrong, so duplicates lower the figure's ceiling. Equal scores rank in the
pairs' order, so a collapsed model scores chance and not 100 %.
The loss is the training loss on all N pairs as one batch: it depends on N, and not on batch size or number of ranks.

Cost: one forward pass a picture and a caption in float32, then N² cosines in pieces. Encoding and cosines are shared by
the ranks (`ranks.py`); each holds the features of all pairs (2 x N x D float32: 200 MB for 50,000 pairs of width 512).

Legend: N pairs, B of a batch, D embedding width.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from evaluate.data.pairs import Pair
from evaluate.encode import encode_texts, picture_rows
from evaluate.errors import RefusedError
from evaluate.ranks import shared_rows
from evaluate.zero_shot import BadImage, Preprocess, Tokenizer

RECALLS = (1, 5, 10)
MOST_SCORES = 2**24  # held at once, 64 MB in float32 and 128 MB in float64


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
    advance: Callable[[int], object] = lambda count: None,
) -> tuple[dict[str, float], list[BadImage]]:
    """Encode all pairs and score them; a pair whose picture cannot be read is left out, counted and named.

    Call it on every rank at once, inside `zero_shot.full_float32`; the result is the same on every rank.

    Args:
        model: an OpenCLIP model with `encode_image`, `encode_text`, `logit_scale` and perhaps `logit_bias`.
        sigmoid: whether the loss is SigLIP's rather than CLIP's.
        threads: how many decode pictures.
        advance: told how many pictures were encoded by this rank.

    Returns:
        figures as `figures_of` gives them with `pairs` and `bad_images`, and the unreadable pictures.

    Raises:
        RefusedError: features that are not finite, or too many unreadable pictures; on every rank.
    """
    images_ND, bad, readable = picture_rows(
        lambda number: pairs[number].picture(),
        [(str(pair.shard), pair.key) for pair in pairs],
        preprocess,
        lambda _, pixels_BCHW: model.encode_image(pixels_BCHW.to(device), normalize=True),  # type: ignore[operator]
        batch_size=batch_size,
        threads=threads,
        advance=advance,
    )
    captions = [pair.caption for pair in pairs]
    texts_ND = encode_texts(model, tokenizer, captions, batch_size=batch_size, device=device)
    for features, what in ((images_ND, "image"), (texts_ND, "text")):
        if not features[readable].isfinite().all():
            raise RefusedError(f"retrieval: {what} features are NaN or infinite; the run has diverged")
    bias = getattr(model, "logit_bias", None)
    found = figures_of(
        images_ND[readable],
        texts_ND[readable],
        scale=number_in(model.logit_scale.exp()),  # type: ignore[operator]
        bias=0.0 if bias is None else number_in(bias),
        sigmoid=sigmoid,
    )
    return found | {"pairs": len(readable), "bad_images": len(bad)}, bad


def number_in(parameter: Tensor) -> float:
    """The value of a one-element parameter, also of one that is sharded over the ranks (a collective call then)."""
    return float(parameter.full_tensor() if isinstance(parameter, DTensor) else parameter)


def figures_of(images_ND: Tensor, texts_ND: Tensor, *, scale: float, bias: float, sigmoid: bool) -> dict[str, float]:
    """Recall in percent both ways and the loss, from unit features of N pairs, row i with row i.

    Returns:
        `image_to_text_r1`, `_r5`, `_r10`, `text_to_image_r1`, `_r5`, `_r10`, `loss`; the same on every rank.
    """
    count = len(images_ND)
    losses_of = sigmoid_losses if sigmoid else softmax_losses

    def compute(batches: Iterator[range]) -> Iterator[Tensor]:
        """(B, 4) float64: the place of the partner, 0 is best, and the loss, by picture and by caption."""
        for batch in batches:
            own_B = torch.arange(batch.start, batch.stop, device=images_ND.device)
            columns = []
            for from_ND, to_ND in ((images_ND, texts_ND), (texts_ND, images_ND)):
                cosines_BN = from_ND[batch.start : batch.stop] @ to_ND.T
                columns += [places(cosines_BN, own_B).double(), losses_of(scale * cosines_BN.double() + bias, own_B)]
            yield torch.stack(columns, dim=1)

    rows = shared_rows(count, max(1, MOST_SCORES // count), compute).cpu()
    by_picture_N, picture_loss_N, by_caption_N, caption_loss_N = rows.unbind(dim=1)
    result = {
        f"{name}_r{k}": 100.0 * int((places_N < k).sum()) / count
        for name, places_N in (("image_to_text", by_picture_N), ("text_to_image", by_caption_N))
        for k in RECALLS
    }
    return result | {"loss": float((picture_loss_N + caption_loss_N).mean() / 2)}


def places(scores_BN: Tensor, own_B: Tensor) -> Tensor:
    """How many candidates come before the right one, `own_B`, in a stable sort by falling score: int64 (B,)."""
    own_B1 = scores_BN.gather(1, own_B[:, None])
    earlier_BN = torch.arange(scores_BN.shape[1], device=own_B.device) < own_B[:, None]
    return ((scores_BN > own_B1) | ((scores_BN == own_B1) & earlier_BN)).sum(dim=1)


def softmax_losses(logits_BN: Tensor, own_B: Tensor) -> Tensor:
    """CLIP's cross-entropy a row, (B,)."""
    return F.cross_entropy(logits_BN, own_B, reduction="none")


def sigmoid_losses(logits_BN: Tensor, own_B: Tensor) -> Tensor:
    """SigLIP's loss a row, (B,): -log sigmoid(z) for the pair, -log sigmoid(-z) for all others, summed."""
    return F.softplus(logits_BN).sum(dim=1) - logits_BN.gather(1, own_B[:, None]).squeeze(1)
