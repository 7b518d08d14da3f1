"""Many texts through a text tower: in large batches of texts of one length, cut where the last of them ends.

    features = encode_texts(model, tokenizer, captions, device=device)      # (N, D) of unit length

In a causal tower that takes its feature at the end-of-text token, no token after it has a say: a batch is cut after its
last end of text, and a class prompt of 10 tokens costs 10 and not 77. Which towers these are is read from the tower and
then tried: where a few texts come out otherwise than uncut, or the tower is of another sort (not causal, class
token, Hugging Face), texts go through whole. Equal texts are encoded once, so their features are equal to the bit.

Cost: one forward pass over the tokens up to the end of text, and N x D numbers on every rank.

Legend: N texts, B of a batch, L tokens of a text, D embedding width.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from open_clip.transformer import Transformer
from torch import Tensor, nn

from data_prep.captions import shortened
from evaluate.ranks import shared_batches

LOG = logging.getLogger(__name__)

TOKENS = 2**14  # a batch
BLOCK = 2**16  # texts that are tokenised and sorted at once
TRIED = 8  # texts on which the cut is compared with the whole
TOLERANCE = 1e-5  # of one number of a unit feature; the cut itself changes the order of sums at most

Tokenizer = Callable[[Sequence[str]], Tensor]


def encode_texts(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    device: torch.device,
    advance: Callable[[int], object] = lambda count: None,
) -> Tensor:
    """Unit text features (N, D) on `device`, N at least 1; the same on every rank.

    Call it on every rank at once, inside `encode.full_float32`.

    Args:
        advance: told how many texts were encoded by this rank.
    """
    unique = list(dict.fromkeys(texts))
    places = {text: number for number, text in enumerate(unique)}
    parts = [
        _encode_block(model, tokenizer([shortened(text) for text in unique[start : start + BLOCK]]), device, advance)
        for start in range(0, len(unique), BLOCK)
    ]
    rows_UD = parts[0] if len(parts) == 1 else torch.cat(parts)
    if len(unique) == len(texts):
        return rows_UD
    return rows_UD[torch.tensor([places[text] for text in texts], device=device)]


def _encode_block(
    model: nn.Module, tokens_NL: Tensor, device: torch.device, advance: Callable[[int], object]
) -> Tensor:
    """Unit features (N, D) of tokenised texts, sorted by length on the way."""
    tower = _causal_tower(model)
    lengths_N = torch.full((len(tokens_NL),), tokens_NL.shape[1]) if tower is None else _lengths(tower, tokens_NL)
    order = lengths_N.argsort(stable=True)
    tokens_NL, lengths = tokens_NL[order], lengths_N[order].tolist()
    if tower is not None and not _cut_is_exact(model, tower, tokens_NL[:TRIED].to(device), lengths[:TRIED]):
        LOG.warning("the text tower's features change when texts are cut at their end: encoding them whole, slower")
        tower, lengths = None, [tokens_NL.shape[1]] * len(lengths)

    def compute(batches: Iterator[range]) -> Iterator[Tensor]:
        for batch in batches:
            tokens_BL = tokens_NL[batch.start : batch.stop].to(device)
            with cut(tower, lengths[batch.stop - 1]):
                yield model.encode_text(tokens_BL, normalize=True).float()  # type: ignore[operator]
            advance(len(batch))

    rows_ND = shared_batches(_batches(lengths), compute)
    unsorted_ND = torch.empty_like(rows_ND)
    unsorted_ND[order.to(device)] = rows_ND
    return unsorted_ND


def _batches(lengths: Sequence[int]) -> list[range]:
    """Runs of texts, sorted by length, of at most `TOKENS` tokens when all are as long as the longest of the run."""
    starts = [0]
    for number, length in enumerate(lengths):
        if (number + 1 - starts[-1]) * length > TOKENS and number > starts[-1]:
            starts.append(number)
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(lengths)], strict=True)]


def _causal_tower(model: nn.Module) -> Any | None:
    """The module that holds the text transformer, where the cut is known to change nothing; None for other towers."""
    tower = getattr(model, "text", model)
    mask, pool = getattr(tower, "attn_mask", None), _pool_type(tower)
    if not isinstance(getattr(tower, "transformer", None), Transformer) or pool not in ("argmax", "eos"):
        return None
    if mask is None or mask.ndim != 2 or getattr(tower, "cls_emb", None) is not None:
        return None
    return tower


def _pool_type(tower: Any) -> str | None:
    """How the tower takes its feature; OpenCLIP's older form of a CLIP holds its text tower's parts itself."""
    return getattr(tower, "text_pool_type", getattr(tower, "pool_type", None))


def _lengths(tower: Any, tokens_NL: Tensor) -> Tensor:
    """Tokens of each text up to the one whose feature is taken, itself included: int64 (N,)."""
    if _pool_type(tower) == "argmax":
        return tokens_NL.argmax(dim=1) + 1
    end: int = tower.text_eos_id if hasattr(tower, "text_eos_id") else tower.eos_id
    return tokens_NL.eq(end).int().argmax(dim=1) + 1


@contextmanager
def cut(tower: Any | None, length: int) -> Iterator[None]:
    """Inside the block the tower's transformer sees the first `length` tokens alone; None: all of them."""
    if tower is None:
        yield
        return

    def first_tokens(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask_LL = kwargs["attn_mask"][:length, :length].contiguous()
        return (args[0][:, :length].contiguous(), *args[1:]), kwargs | {"attn_mask": mask_LL}

    hook = tower.transformer.register_forward_pre_hook(first_tokens, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _cut_is_exact(model: nn.Module, tower: Any, tokens_BL: Tensor, lengths: Sequence[int]) -> bool:
    """Whether a batch cut at its end has the features of the whole. NaN is for the caller to refuse."""
    whole_BD = model.encode_text(tokens_BL, normalize=True)  # type: ignore[operator]
    try:
        with cut(tower, max(lengths)):
            cut_BD = model.encode_text(tokens_BL, normalize=True)  # type: ignore[operator]
    except (RuntimeError, ValueError, TypeError, KeyError):  # another OpenCLIP's tower may not take fewer tokens
        return False
    return not ((whole_BD - cut_BD).abs() > TOLERANCE).any()
