"""Examples: chosen by rule, right and wrong as they are."""

from pathlib import Path

import pytest
import torch

from evaluate import gallery
from evaluate.data.emoji import ClassEntry, Folder, Sample
from evaluate.examples import Examples


def encoded_with(images: torch.Tensor, classes: int, labels: list[int]) -> Examples:
    """A folder whose class features are the unit vectors and whose image features are ``images`` (N, C)."""
    entries = [ClassEntry(f"{i:04d}", f"name {i}", f"group{i % 4}", "sub", False) for i in range(classes)]
    samples = [Sample("s.tar", f"k{n}", b"", label, "v", "v") for n, label in enumerate(labels)]
    folder = Folder(Path("folder"), entries, samples, "0" * 64)
    return Examples(folder, samples, images, torch.eye(classes), logit_scale=10.0)


def one_wrong_in_three(classes: int = 30) -> Examples:
    """Picture n is of class n and looks like it, but every third looks like the class before."""
    looks = [n - 1 if n % 3 == 2 else n for n in range(classes)]
    return encoded_with(torch.eye(classes)[looks] + 0.01 * torch.eye(classes), classes, list(range(classes)))


def test_guesses_are_right_wrong_and_counted() -> None:
    cards, right = gallery.guess_names(one_wrong_in_three())
    assert right == 20
    assert len(cards) == gallery.SHOWN
    assert [c.true_rank == 1 for c in cards] == [True] * 8 + [False] * 4
    for card in cards:
        assert card.names[0] == (card.picture - 1 if card.picture % 3 == 2 else card.picture)
        assert card.true_rank in (1, 2)
        assert card.probabilities == sorted(card.probabilities, reverse=True)
        assert 0 < card.true_probability <= card.probabilities[0] < 1


def test_retrieval_marks_the_right_pictures() -> None:
    shown, found = gallery.retrieve(one_wrong_in_three())
    assert found == 30  # the misplaced pictures still have 0.01 on their own class, more than the zeros of the others
    for retrieval in shown:
        assert retrieval.right == [picture == retrieval.label for picture in retrieval.pictures]
        assert any(retrieval.right)


def test_missed_captions_are_shown_too() -> None:
    blind = encoded_with(-torch.eye(30), 30, list(range(30)))
    shown, found = gallery.retrieve(blind)
    assert found == 0
    assert len(shown) == gallery.SHOWN
    assert not any(any(r.right) for r in shown)


def test_the_choice_is_the_same_each_time_and_takes_groups_in_turn() -> None:
    encoded = one_wrong_in_three()
    first, again = (gallery.guess_names(encoded)[0] for _ in range(2))
    assert first == again
    assert [encoded.folder.classes[c.picture].group for c in first[:4]] == ["group0", "group1", "group2", "group3"]


@pytest.mark.parametrize("classes", [1, 3, 6])
def test_small_sets_show_what_there_is(classes: int) -> None:
    encoded = encoded_with(torch.eye(classes), classes, list(range(classes)))
    assert len(gallery.retrieve(encoded)[0]) == classes
    cards, right = gallery.guess_names(encoded)
    assert len(cards) == right == classes
    assert len(cards[0].names) == min(5, classes)
