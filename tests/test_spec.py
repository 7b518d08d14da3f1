import contextlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from open_clip_linear import KINDS, AttentionSpec, SpecError, parse_spec
from open_clip_linear.attention import TokenLayout
from open_clip_linear.attention.base import Choice


def option_values(option):
    return st.sampled_from(option.values) if isinstance(option, Choice) else st.integers(1, 65535).map(str)


@st.composite
def spec_texts(draw):
    kind = draw(st.sampled_from(list(KINDS)))
    chosen = [o for o in KINDS[kind].options if draw(st.booleans())]
    parts = [f"{o.name}={draw(option_values(o))}" for o in draw(st.permutations(chosen))]
    return kind + (":" + ",".join(parts) if parts else "")


@given(spec_texts())
def test_the_canonical_spelling_parses_to_the_same_spec(text):
    spec = parse_spec(text)
    assert parse_spec(str(spec)) == spec
    assert str(parse_spec(str(spec))) == str(spec)


@given(st.text(max_size=30))
def test_any_text_is_a_spec_or_a_spec_error(text):
    """Nothing but SpecError comes out, and whatever parses has a known kind."""
    with contextlib.suppress(SpecError):
        assert parse_spec(text).kind in KINDS


@given(spec_texts(), st.data())
def test_one_changed_character_never_passes_as_another_kind(text, data):
    at = data.draw(st.integers(0, len(text.partition(":")[0]) - 1))
    letter = data.draw(st.sampled_from("xyz_ Q"))
    assume(letter != text[at])
    damaged = text[:at] + letter + text[at + 1 :]
    with pytest.raises(SpecError, match="unknown kind"):
        parse_spec(damaged)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown kind ''"),
        ("eq8", r"did you mean 'eq[47]'.*allowed kinds: softmax, eq4, eq7, sema, inline"),
        ("EQ7", "unknown kind 'EQ7'"),
        (" eq7", "unknown kind ' eq7'"),
        ("eq7:", "'' is no option; write name=value"),
        ("eq7:scale", "'scale' is no option"),
        ("eq7:scale=", "'scale=' is no option"),
        ("eq7:scale=mean,", "'' is no option"),
        ("eq7:scale=means", "scale='means' is not allowed; allowed: half, mean, learned"),
        ("eq7:scales=mean", r"no option 'scales' \(did you mean 'scale'\?\); allowed options: scale, init"),
        ("eq7:scale=mean,scale=half", "'scale' is given twice"),
        ("sema:window=0", "window='0' is not allowed; allowed: a whole number from 1"),
        ("sema:window=-7", "window='-7' is not allowed"),
        ("sema:window=7.0", "window='7.0' is not allowed"),
        ("sema:window=٧", "is not allowed"),
        ("sema:window=99999999999", "is not allowed"),
        ("sema:local=inline", "allowed: softmax, eq4, eq7"),
        ("inline:scale=mean", "inline has no option 'scale'; this kind has no options"),
        ("eq7*9+softmax*3", "patterns of layers are not supported yet"),
        (7, "must be a string"),
        (["eq7"], "must be a string"),
        (None, "must be a string"),
    ],
)
def test_a_wrong_spec_says_which_part_and_what_is_allowed(text, message):
    with pytest.raises(SpecError, match=message):
        parse_spec(text)


def test_defaults_are_left_out_of_the_spelling():
    assert str(parse_spec("eq7:scale=half,init=mean")) == "eq7"
    assert str(parse_spec("sema:local=softmax,window=7")) == "sema"
    assert str(parse_spec("sema:local=eq4,window=14")) == "sema:window=14,local=eq4"


def test_how_weights_start_is_no_part_of_the_function():
    spec = parse_spec("eq7:scale=learned,init=literal")
    assert str(spec) == "eq7:scale=learned,init=literal"
    assert spec.function() == "eq7:scale=learned"


def test_options_that_need_each_other_are_checked_against_the_tower():
    layout = TokenLayout((4, 4))
    with pytest.raises(SpecError, match="needs scale=learned"):
        parse_spec("eq7:init=literal").build(64, 2, layout)
    with pytest.raises(SpecError, match=r"patch_dropout=0\.5"):
        parse_spec("sema").build(64, 2, TokenLayout((4, 4), patch_dropout=0.5))
    assert isinstance(parse_spec("eq7"), AttentionSpec)
