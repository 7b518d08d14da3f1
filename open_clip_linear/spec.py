"""The attention spec: the string that `block_type` holds in a model-config JSON, such as `sema:window=7,local=eq4`.

    pattern = term {"+" term}                                   layers in order: eq7*9+softmax*3
    term    = (spec | "(" pattern ")") ["*" count]              groups repeat: (sema*2+inline)*4
    spec    = kind [":" option "=" value {"," option "=" value}]

A spec alone, without a count, serves every layer. A spec is parsed once, when a model is created, and everything
wrong with it is said then: which part, what was found, what is allowed.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from open_clip_linear.attention import KINDS, Attention, Layout
from open_clip_linear.attention.base import Value

MOST_CHARACTERS = 200  # of one layer's spec
MOST_LAYERS = 1000
MOST_GROUPS = 20  # inside each other


class SpecError(ValueError):
    """An attention spec that cannot be built; the message names the part, what was found and what is allowed."""


def shown(text: str) -> str:
    """`text` as messages quote it: its beginning where it is long."""
    return repr(text) if len(text) <= MOST_CHARACTERS else f"{text[:40]!r}…"


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
            # An option that a newer definition of the class has no more still says what these layers were built with.
            if name not in declared or (value != declared[name].default and (with_init or not declared[name].only_init))
        ]
        return self.kind + (":" + ",".join(parts) if parts else "")

    def check(self, layout: Layout) -> None:
        """Raise SpecError where this kind cannot work on such tokens."""
        cls = KINDS[self.kind]
        if (layout.causal or layout.padding) and not cls.text:
            raise SpecError(f"attention {str(self)!r}: {self.kind} has no causal form for text towers")
        try:
            cls.check(layout, **dict(self.options))
        except ValueError as error:
            raise SpecError(f"attention {str(self)!r}: {error}") from None

    def build(self, dim: int, num_heads: int, layout: Layout) -> Attention:
        """The attention module of one layer. Raises SpecError where the kind cannot work on such tokens."""
        self.check(layout)
        return KINDS[self.kind](dim, num_heads, layout, **dict(self.options))

    def weight_sum(self, keys: float) -> float:
        """The size of this kind's branch beside a mean; see `Attention.weight_sum`."""
        return KINDS[self.kind].weight_sum(keys, **dict(self.options))


def spell(functions: Iterable[str]) -> str:
    """Layers' specs as one canonical pattern: a spec alone where all are equal, runs with counts otherwise."""
    runs = [(text, len(list(run))) for text, run in groupby(functions)]
    if len(runs) == 1:
        return runs[0][0]
    return "+".join(text if count == 1 else f"{text}*{count}" for text, count in runs)


@dataclass(frozen=True)
class Pattern:
    """The specs of a tower's layers in order; `everywhere` where one spec serves as many as there are."""

    text: str
    specs: tuple[AttentionSpec, ...]
    everywhere: bool = False

    def layers(self, count: int) -> tuple[AttentionSpec, ...]:
        """One spec a layer. Raises SpecError, with the sum, where the pattern is for another number of layers."""
        if self.everywhere:
            return self.specs * count
        if len(self.specs) != count:
            kinds = [f"{n} {spec}" for spec, n in Counter(map(str, self.specs)).items()]
            parts = " + ".join(kinds[:6] + ["…"] * (len(kinds) > 6))
            layers = "1 layer" if len(self.specs) == 1 else f"{len(self.specs)} layers"
            raise SpecError(f"attention {shown(self.text)} is for {layers} ({parts}), but the tower has {count}")
        return self.specs


def parse_pattern(text: object) -> Pattern:
    """Parse what `block_type` may hold: a spec for all layers, or a pattern of specs.

    Raises:
        SpecError: not a string, a spec that `parse_spec` refuses, or signs that make no pattern.
    """
    if not isinstance(text, str):
        raise SpecError(f"an attention spec must be a string such as 'eq7', but got {text!r}")
    tokens = re.findall(r"[()*+]|[^()*+]+", text)
    if not any(token in "()*+" for token in tokens):
        return Pattern(text, (parse_spec(text),), everywhere=True)
    return Pattern(text, _Parser(text, tokens).pattern())


class _Parser:
    """Recursive descent over the tokens of one pattern."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def fail(self, expected: str) -> SpecError:
        found = repr(self.next) if self.next else "the end"
        before = "".join(self.tokens[: self.at])[-40:]
        return SpecError(f"attention {shown(self.text)}: expected {expected} after {before!r}, found {found}")

    def pattern(self) -> tuple[AttentionSpec, ...]:
        specs = self.terms(depth=0)
        if self.next:
            raise self.fail("'+', '*' or the end")
        return specs

    def terms(self, depth: int) -> tuple[AttentionSpec, ...]:
        specs = self.term(depth)
        while self.next == "+":
            self.at += 1
            specs += self.term(depth)
            self.check_length(len(specs))
        return specs

    def term(self, depth: int) -> tuple[AttentionSpec, ...]:
        if self.next == "(":
            if depth == MOST_GROUPS:
                raise SpecError(f"attention {shown(self.text)}: more than {MOST_GROUPS} groups inside each other")
            self.at += 1
            specs = self.terms(depth + 1)
            if self.next != ")":
                raise self.fail("')'")
        elif self.next and self.next not in ")*+":
            specs = (parse_spec(self.next),)
        else:
            raise self.fail("a kind or '('")
        self.at += 1
        if self.next != "*":
            return specs
        self.at += 1
        count = self.next
        if not (count.isascii() and count.isdigit()) or count.startswith("0") or len(count) > 4:
            raise self.fail("a count from 1 to 1000")
        self.check_length(len(specs) * int(count))
        self.at += 1
        return specs * int(count)

    def check_length(self, layers: int) -> None:
        if layers > MOST_LAYERS:
            raise SpecError(f"attention {shown(self.text)}: {layers} layers are more than {MOST_LAYERS}")


def parse_spec(text: object) -> AttentionSpec:
    """Parse the spec of one layer.

    Raises:
        SpecError: not a string, unknown kind, unknown, repeated or malformed option, or value that is not allowed.
    """
    if not isinstance(text, str):
        raise SpecError(f"an attention spec must be a string such as 'eq7', but got {text!r}")
    if len(text) > MOST_CHARACTERS:
        raise SpecError(f"one spec has at most {MOST_CHARACTERS} characters, but got {len(text)}: {text[:40]!r}…")
    kind, colon, rest = text.partition(":")
    if kind not in KINDS:
        raise SpecError(
            f"attention {text!r}: unknown kind {kind!r}{nearest(kind, KINDS)}; allowed kinds: {', '.join(KINDS)} "
            "(a kind of your own is known once its module is imported)"
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
