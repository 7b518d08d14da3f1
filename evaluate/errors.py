"""The one error a user is meant to read: what is wrong, what was found, what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class RefusedError(Exception):
    """Raised before any work is done, or when going on would give a wrong number. The message is for the user."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names what was probably meant: ``Nearest: emoji.`` or, with nothing near, all known names."""
    known = sorted(known)
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"Nearest: {', '.join(close)}."
    shown = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return f"Known: {shown}." if known else "None is known."
