"""Examples for the report: pictures found for a caption, names guessed for a picture. Chosen by rule, not by eye.

The examples are drawn by the hash of their concept, one group after the other, from the cases that went right and from
those that went wrong; the page says how many of each there are, so a gallery cannot look better than the run is.

Legend: N pictures, C classes, K shown.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evaluate import metrics
from evaluate.data.emoji import ClassEntry
from evaluate.examples import Examples

SHOWN = 12
RIGHT_SHOWN = 8  # of SHOWN, where there are that many
TOP = 5


@dataclass(frozen=True)
class Retrieval:
    """The pictures nearest to one caption, best first, as places in ``encoded.samples``."""

    label: int
    pictures: list[int]
    right: list[bool]  # whether each picture is of that concept


@dataclass(frozen=True)
class Guess:
    """The names nearest to one picture, best first."""

    picture: int
    names: list[int]  # class indices
    probabilities: list[float]  # 0..1 over all classes
    true_rank: int  # 1 = best
    true_probability: float


def draw(
    candidates: Sequence[int], classes: Sequence[ClassEntry], label_of: Sequence[int], count: int, salt: str
) -> list[int]:
    """``count`` of the candidates, in an order fixed by the concepts' hashes, taking the groups in turn.

    ``label_of`` maps a candidate to its class index; another ``salt`` gives another order.
    """
    by_group: dict[str, list[int]] = defaultdict(list)

    def rank(candidate: int) -> str:
        return hashlib.sha256(f"{salt}/{classes[label_of[candidate]].concept}".encode()).hexdigest()

    for candidate in sorted(candidates, key=rank):
        by_group[classes[label_of[candidate]].group].append(candidate)
    queues = [by_group[group] for group in sorted(by_group)]
    drawn: list[int] = []
    while len(drawn) < count and any(queues):
        for queue in queues:
            if queue and len(drawn) < count:
                drawn.append(queue.pop(0))
    return drawn


def draw_both(
    right: Sequence[int], wrong: Sequence[int], classes: Sequence[ClassEntry], label_of: Sequence[int], salt: str
) -> list[int]:
    """``SHOWN`` examples, ``RIGHT_SHOWN`` of them right; either side fills up when the other has too few."""
    rights = min(len(right), max(RIGHT_SHOWN, SHOWN - len(wrong)))
    return draw(right, classes, label_of, rights, salt) + draw(wrong, classes, label_of, SHOWN - rights, salt)


@torch.inference_mode()
def retrieve(encoded: Examples) -> tuple[list[Retrieval], int]:
    """Captions with their ``TOP`` pictures, and for how many of all captions a right picture is among them."""
    scores_CN = (encoded.images @ encoded.classifier).T
    best_CK = metrics.top_k(scores_CN, TOP)
    right_CK = encoded.labels[best_CK] == torch.arange(len(best_CK))[:, None]
    found_C = right_CK.any(dim=1)
    found, missed = found_C.nonzero().flatten().tolist(), (~found_C).nonzero().flatten().tolist()
    chosen = draw_both(found, missed, encoded.folder.classes, range(len(best_CK)), "caption")
    return [Retrieval(c, best_CK[c].tolist(), right_CK[c].tolist()) for c in chosen], len(found)


@torch.inference_mode()
def guess_names(encoded: Examples) -> tuple[list[Guess], int]:
    """Pictures with their ``TOP`` names, and for how many of all pictures the first name is right.

    Probabilities are the softmax over all classes of the model's own logit scale times the cosine.
    """
    cosines_NC = encoded.images @ encoded.classifier
    labels_N = encoded.labels
    best_NK = metrics.top_k(cosines_NC, TOP)
    right_N = best_NK[:, 0] == labels_N
    right, wrong = right_N.nonzero().flatten().tolist(), (~right_N).nonzero().flatten().tolist()
    guesses = []
    for i in draw_both(right, wrong, encoded.folder.classes, labels_N.tolist(), "picture"):
        probabilities_C = (encoded.logit_scale * cosines_NC[i]).softmax(dim=0)
        label = int(labels_N[i])
        guesses.append(
            Guess(
                picture=i,
                names=best_NK[i].tolist(),
                probabilities=probabilities_C[best_NK[i]].tolist(),
                true_rank=1 + int((cosines_NC[i] > cosines_NC[i, label]).sum()),
                true_probability=float(probabilities_C[label]),
            )
        )
    return guesses, len(right)
