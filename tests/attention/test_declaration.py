"""`register_attention`: what a kind's class must declare, and what is said where it does not."""

import pytest
import torch

import open_clip_linear


def kind_of(name, **attributes):
    def attend(self, q, k, v, valid):
        return v

    return type("Toy", (open_clip_linear.Attention,), {"kind": name, "attend": attend} | attributes)


def takes_anything(self, *args, **kwargs):
    pass


@pytest.mark.parametrize("name", ["eq7", "softmax", "custom", "default"])
def test_a_taken_name_is_refused(name):
    with pytest.raises(ValueError, match=f"Toy: the kind '{name}' is taken"):
        open_clip_linear.register_attention(kind_of(name))


@pytest.mark.parametrize("name", ["", "Eq9", "eq 9", "eq9*2", "a:b", "é", 7, None, "(x)", "a+b", "a,b", "a=b"])
def test_a_name_that_cannot_stand_in_a_spec_is_refused(name):
    with pytest.raises(ValueError, match="must be a word"):
        open_clip_linear.register_attention(kind_of(name))
    option = open_clip_linear.Choice(name, ("on", "off"))
    with pytest.raises(ValueError, match=r"must be a word|is taken"):
        open_clip_linear.register_attention(kind_of("toy", options=(option,), __init__=takes_anything))


def test_what_is_no_attention_is_refused():
    with pytest.raises(TypeError, match="takes a subclass"):
        open_clip_linear.register_attention(int)
    unfinished = type("Unfinished", (open_clip_linear.Attention,), {"kind": "unfinished"})
    with pytest.raises(TypeError, match="Unfinished implements no attend"):
        open_clip_linear.register_attention(unfinished)
    assert not {"toy", "unfinished"} & set(open_clip_linear.KINDS)


def test_a_class_defined_again_takes_its_own_place(monkeypatch):
    monkeypatch.setattr("open_clip_linear.attention.KINDS", {})
    first, second = kind_of("toy"), kind_of("toy")
    open_clip_linear.register_attention(first)
    assert open_clip_linear.register_attention(second) is second


CHOICE = open_clip_linear.Choice("clamp", ("on", "off"))


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"options": CHOICE}, TypeError, "options must be a tuple"),
        ({"options": ("clamp",)}, TypeError, "options must be a tuple"),
        ({"options": (CHOICE,)}, TypeError, r"Toy.__init__ must take \(self, dim, num_heads, layout, clamp\)"),
        ({"options": (CHOICE, CHOICE), "__init__": takes_anything}, ValueError, "called 'clamp', which is taken"),
        (
            {"options": (open_clip_linear.Integer("dim", 3),), "__init__": takes_anything},
            ValueError,
            "called 'dim', which is taken",
        ),
        ({"attend": lambda self, q, k, v: v}, TypeError, r"Toy.attend must take \(self, q, k, v, valid\)"),
        ({"check": lambda cls, layout: None}, TypeError, "Toy.check must take .* as a classmethod"),
        ({"weight_sum": classmethod(lambda cls: 1)}, TypeError, "Toy.weight_sum must take"),
        ({"kind": None}, ValueError, "the class attribute kind must be a word"),
    ],
)
def test_a_class_that_could_not_be_called_is_refused_when_it_is_registered(attributes, error, message):
    with pytest.raises(error, match=message):
        open_clip_linear.register_attention(kind_of("toy", **attributes))
    assert "toy" not in open_clip_linear.KINDS


@pytest.mark.parametrize("values", ["on", (), ("on", 1), ["on"]])
def test_a_choice_without_words_is_refused(values):
    with pytest.raises(ValueError, match="values must be a tuple of words"):
        open_clip_linear.Choice("clamp", values)


@pytest.mark.parametrize("default", [0, 10**6, "7", None])
def test_an_integer_whose_default_could_not_be_written_is_refused(default):
    with pytest.raises(ValueError, match="the default must be a whole number"):
        open_clip_linear.Integer("window", default)


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (lambda v: v.transpose(1, 2), r"torch.float32 \(1, 5, 2, 8\)"),
        (lambda v: v[..., :4], r"torch.float32 \(1, 2, 5, 4\)"),
        (lambda v: v.double(), r"torch.float64 \(1, 2, 5, 8\)"),
        (lambda v: None, "NoneType"),
    ],
)
def test_an_attend_that_returns_another_shape_is_refused(result, found):
    """Heads and tokens in each other's place would mix tokens without a word."""
    toy = kind_of("toy", attend=lambda self, q, k, v, valid: result(v))
    attention = toy(16, 2, open_clip_linear.VisionLayout((2, 2)))
    with pytest.raises(TypeError, match=rf"toy: attend must return .*\(1, 2, 5, 8\) like v, but returned {found}"):
        attention(torch.randn(1, 5, 16))
