"""The attention spec: the string that `block_type` holds in a model-config JSON, such as `sema:window=7,local=eq4`.

    spec = kind [":" option "=" value {"," option "=" value}]

A spec is parsed once, when a model is created, and everything wrong with it is said then: which part, what was
found, what is allowed.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from open_clip_linear.attention import KINDS, Attention, TokenLayout
from open_clip_linear.attention.base import Value


class SpecError(ValueError):
    """An attention spec that cannot be built; the message names the part, what was found and what is allowed."""


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the known word closest to `word`, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@dataclass(frozen=True)
class AttentionSpec:
    """A kind with every option's value, defaults included, in the order the kind declares them."""

    kind: str
    options: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        """The canonical spelling: options at their default are left out."""
        return self._spell(with_init=True)

    def function(self) -> str:
        """The canonical spelling without the options that only say how weights start.

        This is what a checkpoint must agree on with the model it is loaded into.
        """
        return self._spell(with_init=False)

    def _spell(self, with_init: bool) -> str:
        declared = {option.name: option for option in KINDS[self.kind].options}
        parts = [
            f"{name}={value}"
            for name, value in self.options
            if value != declared[name].default and (with_init or not declared[name].only_init)
        ]
        return self.kind + (":" + ",".join(parts) if parts else "")

    def check(self, layout: TokenLayout) -> None:
        """Raise SpecError where this kind cannot work on such tokens."""
        try:
            KINDS[self.kind].check(layout, **dict(self.options))
        except ValueError as error:
            raise SpecError(f"attention {str(self)!r}: {error}") from None

    def build(self, dim: int, num_heads: int, layout: TokenLayout) -> Attention:
        """The attention module of one layer. Raises SpecError where the kind cannot work on such tokens."""
        self.check(layout)
        return KINDS[self.kind](dim, num_heads, layout, **dict(self.options))


def parse_spec(text: object) -> AttentionSpec:
    """Parse an attention spec.

    Raises:
        SpecError: not a string, unknown kind, unknown, repeated or malformed option, value that is not allowed,
            or a layer pattern.
    """
    if not isinstance(text, str):
        raise SpecError(f"an attention spec must be a string such as 'eq7', but got {text!r}")
    if len(text) > 200:
        raise SpecError(f"an attention spec has at most 200 characters, but got {len(text)}: {text[:40]!r}…")
    if any(sign in text for sign in "*+()"):
        raise SpecError(f"attention {text!r}: one kind serves all layers; patterns of layers are not supported yet")
    kind, colon, rest = text.partition(":")
    if kind not in KINDS:
        raise SpecError(
            f"attention {text!r}: unknown kind {kind!r}{nearest(kind, KINDS)}; allowed kinds: {', '.join(KINDS)}"
        )
    given = _parse_options(text, rest) if colon else {}
    declared = {option.name: option for option in KINDS[kind].options}
    for name in given:
        if name not in declared:
            allowed = f"allowed options: {', '.join(declared)}" if declared else "this kind has no options"
            raise SpecError(f"attention {text!r}: {kind} has no option {name!r}{nearest(name, declared)}; {allowed}")
    values: list[tuple[str, Value]] = []
    for name, option in declared.items():
        value = option.parse(given[name]) if name in given else option.default
        if value is None:
            raise SpecError(f"attention {text!r}: {name}={given[name]!r} is not allowed; allowed: {option.allowed}")
        values.append((name, value))
    return AttentionSpec(kind, tuple(values))


def _parse_options(text: str, rest: str) -> dict[str, str]:
    """`a=1,b=2` as a dict; `text` is the whole spec, for messages."""
    options: dict[str, str] = {}
    for part in rest.split(","):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise SpecError(f"attention {text!r}: {part!r} is no option; write name=value, separated by commas")
        if name in options:
            raise SpecError(f"attention {text!r}: option {name!r} is given twice")
        options[name] = value
    return options
