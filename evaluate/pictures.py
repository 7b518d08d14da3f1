"""The report's pictures as HTML: retrieval rows and guess cards, with the pictures inside the page as data URIs."""

import base64
import io
from collections.abc import Sequence
from html import escape

from data_prep.shards import decode_image
from evaluate.examples import Examples
from evaluate.gallery import Guess, Retrieval
from evaluate.page import figure

LARGEST = 96  # pixels a side; what a picture is shown at on a dense screen


def data_uri(image: bytes) -> str:
    """An encoded picture as a PNG data URI of at most ``LARGEST`` pixels a side, on white where it is transparent.

    Decoding and encoding again means that nothing but pixels reaches the page.
    """
    picture = decode_image(image)
    picture.thumbnail((LARGEST, LARGEST))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def picture(encoded: Examples, place: int, *, right: bool = False) -> str:
    """One picture in its frame; a right one has a green ring and a check mark."""
    sample = encoded.samples[place]
    name = encoded.folder.classes[sample.label].name
    alt = f"Emoji: {name}, drawn by {sample.vendor}"
    badge = '<span class="badge" role="img" aria-label="right">✓</span>' if right else ""
    return (
        f'<span class="picture{" right" if right else ""}"><img src="{data_uri(sample.image)}" alt="{escape(alt)}" '
        f'width="{LARGEST}" height="{LARGEST}">{badge}</span>'
    )


def found(retrievals: Sequence[Retrieval], hits: int, encoded: Examples) -> str:
    """The captions with their five nearest pictures, nearest first."""
    names, total = [c.name for c in encoded.folder.classes], len(encoded.folder.classes)
    items = []
    for retrieval in retrievals:
        shown = "".join(
            f"<li>{picture(encoded, place, right=right)}"
            f'<span class="label">{escape(names[encoded.samples[place].label])}</span></li>'
            for place, right in zip(retrieval.pictures, retrieval.right, strict=True)
        )
        items.append(f"<li><h3>“{escape(names[retrieval.label])}”</h3><ol>{shown}</ol></li>")
    shown_hits = sum(any(r.right) for r in retrievals)
    return (
        f'<p class="note">For each caption the {len(retrievals[0].pictures)} nearest of {len(encoded.samples):,} '
        "pictures of the held-out vendor, nearest first; a right one has a check mark. A right picture is among them "
        f"for {hits:,} of {total:,} captions ({figure(100 * hits / total)}&nbsp;%). Shown are {shown_hits} captions "
        f"where it is and {len(retrievals) - shown_hits} where it is not, chosen by rule and not by eye: the first in "
        "the order of a hash of their code, one from each group in turn.</p>"
        f'<ul class="found">{"".join(items)}</ul>'
    )


def guesses(cards: Sequence[Guess], hits: int, encoded: Examples) -> str:
    """The pictures with the five names the model finds most likely."""
    total = len(encoded.samples)
    right = sum(card.true_rank == 1 for card in cards)
    return (
        f'<p class="note">For each picture the {len(cards[0].names)} most likely of {len(encoded.folder.classes):,} '
        "names, with the model’s probability (softmax over all names at its own temperature). The heading is the true "
        f"name. The first name is right for {hits:,} of {total:,} pictures; shown are {right} of these and "
        f"{len(cards) - right} of the others, chosen in the same way.</p>"
        f'<ul class="guesses">{"".join(guess_card(card, encoded) for card in cards)}</ul>'
    )


def guess_card(card: Guess, encoded: Examples) -> str:
    """One picture, its true name, and its guesses with their probabilities."""
    names = [c.name for c in encoded.folder.classes]
    truth = encoded.samples[card.picture].label
    right = card.names[0] == truth
    verdict = '<span class="verdict">✓ right</span>' if right else '<span class="verdict wrong">✗ wrong</span>'
    lines = "".join(
        guess_line(names[name], probability, name == truth)
        for name, probability in zip(card.names, card.probabilities, strict=True)
    )
    below = ""
    if truth not in card.names:
        below = (
            f'<p class="where">The true name is number {card.true_rank:,}, '
            f"at {figure(100 * card.true_probability)}&nbsp;%.</p>"
        )
    return (
        f"<li>{picture(encoded, card.picture)}<div><h3>{escape(names[truth])} {verdict}</h3>"
        f'<ol class="names">{lines}</ol>{below}</div></li>'
    )


def guess_line(name: str, probability: float, true: bool) -> str:
    """One guessed name with a strip as long as its probability."""
    css = ' class="true"' if true else ""
    return (
        f'<li{css}><span class="name" title="{escape(name)}">{escape(name)}</span>'
        f'<span class="probability">{figure(100 * probability)}&nbsp;%</span>'
        '<svg class="strip" width="100%" height="4" aria-hidden="true">'
        '<rect class="track" width="100%" height="4" rx="2"/>'
        f'<rect class="fill{" true" if true else ""}" width="{100 * probability:.2f}%" height="4" rx="2"/></svg></li>'
    )
