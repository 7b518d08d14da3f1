"""Class weights from class names: each name through all templates, normalised, averaged, normalised again.

    weights_DC = class_weights(model, tokenizer, names, templates, device=device)
    scores_NC = 100.0 * features_ND @ weights_DC

What OpenCLIP's `build_zero_shot_classifier` computes, with the same sums in the same order, but the prompts of many
classes go through the tower together, cut where they end (`texts.py`), and shared by the ranks. A name that stands
twice is encoded once: its classes tie exactly.

Cost: C x T prompts through the text tower, and BLOCK x T x D numbers beside the weights themselves.

Legend: C classes, T templates, B classes of a block, D embedding width.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from evaluate.errors import RefusedError
from evaluate.texts import BLOCK, Tokenizer, encode_texts


def class_weights(
    model: nn.Module,
    tokenizer: Tokenizer,
    names: Sequence[str],
    templates: Sequence[str],
    *,
    device: torch.device,
    advance: Callable[[int], object] = lambda count: None,
) -> Tensor:
    """One unit column a name: float32 (D, C) on `device`, the same on every rank.

    Call it on every rank at once, inside `encode.full_float32`.

    Args:
        names: what the text tower reads, length C at least 1, in class-index order.
        templates: format strings with one `{}` for the name.
        advance: told how many prompts were encoded by this rank.

    Raises:
        RefusedError: features that are not finite, or prompts of a class that cancel each other; on every rank.
    """
    unique = list(dict.fromkeys(names))
    a_block = max(1, BLOCK // len(templates))
    parts = []
    for start in range(0, len(unique), a_block):
        block = unique[start : start + a_block]
        prompts = [template.format(name) for name in block for template in templates]
        features = encode_texts(model, tokenizer, prompts, device=device, advance=advance)
        mean_BD = features.reshape(len(block), len(templates), -1).mean(dim=1)
        parts.append(mean_BD / mean_BD.norm(dim=1, keepdim=True))
    weights_UD = torch.cat(parts)
    refuse_non_finite(weights_UD, "numbers of the text features")
    places = {name: number for number, name in enumerate(unique)}
    return weights_UD[torch.tensor([places[name] for name in names], device=device)].T.contiguous()


def refuse_non_finite(features: Tensor, what: str) -> None:
    """Raise RefusedError where a feature is NaN or infinite: such a model has no predictions."""
    finite = torch.isfinite(features)
    if not finite.all():
        raise RefusedError(
            f"{int((~finite).sum())} of {features.numel()} {what} are NaN or infinite. The checkpoint is damaged or "
            "the run diverged: look at the end of its metrics.jsonl and evaluate an earlier checkpoint."
        )
