"""What a kind's class must declare, checked when it is registered and said in words of the class."""

import inspect
from typing import Any

from open_clip_linear.attention.base import Attention, Choice, Integer, VisionLayout

# Names of what options are passed beside, to `__init__`, `check` and `weight_sum`.
RESERVED = ("self", "cls", "dim", "num_heads", "layout", "keys")


def is_word(word: object) -> bool:
    """Whether a word can stand in a spec. Other signs have a meaning there, and one spelling of a kind is enough."""
    return isinstance(word, str) and word.isascii() and word.replace("_", "").isalnum() and word == word.lower()


def check_declaration(cls: Any) -> None:
    """Raise TypeError or ValueError, see `register_attention`, for the first thing wrong with a kind's class."""
    if not (isinstance(cls, type) and issubclass(cls, Attention)):
        raise TypeError(f"register_attention takes a subclass of open_clip_linear.Attention, but got {cls!r}")
    name = cls.__name__
    if missing := sorted(cls.__abstractmethods__):
        raise TypeError(f"{name} implements no {', '.join(missing)}")
    if not is_word(getattr(cls, "kind", None)):
        raise ValueError(
            f"{name}: the class attribute kind must be a word of a-z, 0-9 and _, with at least one letter or digit, to "
            f"stand in an attention spec; found {getattr(cls, 'kind', None)!r}"
        )
    if not (isinstance(cls.options, tuple) and all(isinstance(option, Choice | Integer) for option in cls.options)):
        raise TypeError(f"{name}: options must be a tuple of Choice and Integer (mind the comma): {cls.options!r}")
    names = [option.name for option in cls.options]
    for option in cls.options:
        for word in (option.name, *(option.values if isinstance(option, Choice) else ())):
            if not is_word(word):
                raise ValueError(f"{name}: {word!r} must be a word of a-z, 0-9 and _ to stand in an attention spec")
        if option.name in RESERVED or names.count(option.name) > 1:
            raise ValueError(f"{name}: an option cannot be called {option.name!r}, which is taken; choose another name")
    check_signatures(cls)


def check_signatures(cls: type[Attention]) -> None:
    """Raise TypeError for a method that could not be called as towers will call it."""
    options = {option.name: option.default for option in cls.options}
    layout = VisionLayout((1, 1))
    words = "".join(f", {name}" for name in options)
    calls: tuple[tuple[str, Any, tuple[Any, ...], dict[str, Any], str], ...] = (
        ("__init__", cls, (1, 1, layout), options, f"(self, dim, num_heads, layout{words})"),
        ("check", cls.check, (layout,), options, f"(cls, layout{words or ', **options'}), as a classmethod"),
        ("weight_sum", cls.weight_sum, (1.0,), options, f"(cls, keys{words or ', **options'}), as a classmethod"),
        ("attend", cls.attend, (None, None, None, None, None), {}, "(self, q, k, v, valid)"),
    )
    for method, function, arguments, keywords, wanted in calls:
        try:
            inspect.signature(function).bind(*arguments, **keywords)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.{method} must take {wanted}: {error}") from None
