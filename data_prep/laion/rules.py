"""Which rows of the metadata are worth a download: one small function a rule, in the order in which they are asked.

    for rule in rules_for(Settings()): rows = rows.kept(rule.test(rows))

A row counts for the first rule it fails. A value that is missing fails; a rule whose column is missing is off. The
rules that are cheap come first and the set of URLs last, so that it holds only rows that are taken.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.captions import cleaned
from data_prep.errors import UsageError
from data_prep.laion.language import Spoken, package_version
from data_prep.laion.opt_out import OptOut
from data_prep.laion.rows import Rows
from data_prep.laion.seen import Seen, hashes_of
from data_prep.laion.urls import clean_url, host_of, is_public_host
from data_prep.manifest import sha256_file

CAPTION_CHARACTERS = (5, 1000)
NSFW = "UNLIKELY"  # LAION-400M's other tags are UNSURE and NSFW


@dataclass(frozen=True)
class Settings:
    """The numbers of the rules; each default is the command line's.

    min_side is in pixels, max_aspect the longer side over the shorter, sample a share of the URLs.
    """

    min_similarity: float = 0.3
    min_side: int = 64
    max_aspect: float = 3.0
    language: str | None = None
    opt_out: Path | None = None
    sample: float = 1.0
    seed: int = 0
    max_rows: int | None = None
    allow_private: bool = False

    def check(self) -> None:
        """Raise UsageError, in the command line's words, for numbers that mean nothing."""
        if not 0 < self.sample <= 1:
            raise UsageError(f"--sample is a share above 0 and at most 1, found {self.sample}")
        if not self.max_aspect >= 1:
            raise UsageError(f"--max-aspect is the longer side over the shorter, at least 1, found {self.max_aspect}")
        if self.max_rows is not None and self.max_rows < 1:
            raise UsageError(f"--max-rows must be at least 1, found {self.max_rows}")

    def identity(self) -> dict[str, Any]:
        """Everything that decides which rows pass, as plan.json has it."""
        return {
            **asdict(self),
            "nsfw": NSFW,
            "caption_characters": list(CAPTION_CHARACTERS),
            "opt_out": sha256_file(self.opt_out) if self.opt_out else None,
            "language_package": package_version() if self.language else None,
        }


@dataclass(frozen=True)
class Rule:
    """One reason to leave a row out.

    name: in the counts. says: what is wrong with such a row. test: gives bool (N,), true for the rows that pass, and
    may put cleaner values into the rows. shows: the role whose value is an example. needs: the roles it asks about.
    """

    name: str
    says: str
    test: Callable[[Rows], np.ndarray]
    shows: str = "url"
    needs: tuple[str, ...] = ()


def rules_for(settings: Settings) -> list[Rule]:
    """The rules in their order, those included whose columns may be missing.

    Raises:
        DataError: the opt-out list cannot be read, or the language package is not installed.
    """
    least, most = CAPTION_CHARACTERS
    sides = ("width", "height")
    rules = [
        Rule(
            "similarity",
            f"similarity below {settings.min_similarity:g}",
            lambda rows: rows.columns["similarity"] >= settings.min_similarity,
            "similarity",
            ("similarity",),
        ),
        Rule("nsfw", f"NSFW is not {NSFW}", _is_safe, "nsfw", ("nsfw",)),
        Rule(
            "min_side",
            f"a side below {settings.min_side} pixels",
            lambda rows: np.minimum(rows.columns["width"], rows.columns["height"]) >= max(settings.min_side, 1),
            "width",
            sides,
        ),
        Rule(
            "aspect",
            f"one side more than {settings.max_aspect:g} times the other",
            lambda rows: _aspect(rows) <= settings.max_aspect,
            "width",
            sides,
        ),
        Rule("url", "no http(s) URL, or one with credentials", _clean_urls),
        Rule("host", "a host inside a machine or a network", _is_public),
        Rule("caption", "no text", _is_text, "caption"),
        Rule("caption_length", f"not {least} to {most} characters", _clean_captions, "caption"),
        *_chosen_rules(settings),
    ]
    return [rule for rule in rules if not (rule.name == "host" and settings.allow_private)]


def _chosen_rules(settings: Settings) -> list[Rule]:
    """The rules that are there when they are asked for, and the two that end the list."""
    rules, seen = [], Seen()
    if settings.opt_out:
        listed = OptOut(settings.opt_out)
        rules.append(Rule("opt_out", "on the opt-out list", lambda rows: listed.allows(rows.columns["url"])))
    if settings.sample < 1:
        key, most = settings.seed.to_bytes(8, "little", signed=True), settings.sample * 2.0**64
        in_sample = f"not in the sample of {settings.sample:g}"
        rules.append(Rule("sample", in_sample, lambda rows: hashes_of(rows.columns["url"], key) < most))
    if settings.language:
        spoken = Spoken(settings.language)
        named = f"not in the language {settings.language}"
        rules.append(Rule("language", named, lambda rows: spoken(rows.columns["caption"]), "caption"))
    rules.append(Rule("duplicate", "the URL of an earlier row", lambda rows: seen.new(hashes_of(rows.columns["url"]))))
    if settings.max_rows is not None:
        rules.append(Rule("max_rows", f"after {settings.max_rows} rows", _First(settings.max_rows)))
    return rules


class _First:
    """The first so many rows of all."""

    def __init__(self, most: int) -> None:
        self._left = most

    def __call__(self, rows: Rows) -> np.ndarray:
        mask = np.arange(len(rows)) < self._left
        self._left -= int(mask.sum())
        return mask


def _is_safe(rows: Rows) -> np.ndarray:
    return _mask(as_text(tag) == NSFW for tag in rows.columns["nsfw"])


def _aspect(rows: Rows) -> np.ndarray:
    """float64 (N,): the longer side over the shorter; NaN, which fails, where one is missing."""
    width, height = rows.columns["width"], rows.columns["height"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.maximum(width, height) / np.minimum(width, height)


def _clean_urls(rows: Rows) -> np.ndarray:
    """Puts URLs in their one spelling."""
    rows.columns["url"] = [clean_url(raw) if isinstance(raw, (str, bytes)) else None for raw in rows.columns["url"]]
    return _mask(url is not None for url in rows.columns["url"])


def _is_public(rows: Rows) -> np.ndarray:
    return _mask(is_public_host(host_of(url)) for url in rows.columns["url"])


def _is_text(rows: Rows) -> np.ndarray:
    return _mask(isinstance(raw, (str, bytes)) for raw in rows.columns["caption"])


def _clean_captions(rows: Rows) -> np.ndarray:
    """Makes captions valid text, and judges the length of that."""
    least, most = CAPTION_CHARACTERS
    rows.columns["caption"] = [cleaned(raw) for raw in rows.columns["caption"]]
    return _mask(least <= len(caption) <= most for caption in rows.columns["caption"])


def _mask(answers: Any) -> np.ndarray:
    return np.fromiter(answers, dtype=bool)


def as_text(value: Any) -> str | None:
    """A licence, tag or id as valid text of at most 1,000 characters; None stays None."""
    if value is None:
        return None
    return cleaned(value if isinstance(value, (str, bytes)) else str(value))[:1000]
