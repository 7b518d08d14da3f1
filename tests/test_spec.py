import contextlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from open_clip_linear import KINDS, AttentionSpec, SpecError, TextLayout, parse_pattern, parse_spec
from open_clip_linear.attention import VisionLayout
from open_clip_linear.attention.base import Choice
from open_clip_linear.spec import spell


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
        ("eq7*9+softmax*3", r"unknown kind 'eq7\*9\+softmax\*3'"),
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
    layout = VisionLayout((4, 4))
    with pytest.raises(SpecError, match="needs scale=learned"):
        parse_spec("eq7:init=literal").build(64, 2, layout)
    with pytest.raises(SpecError, match=r"patch_dropout=0\.5"):
        parse_spec("sema").build(64, 2, VisionLayout((4, 4), patch_dropout=0.5))
    assert isinstance(parse_spec("eq7"), AttentionSpec)


def test_a_kind_without_a_causal_form_is_refused_in_text_towers(monkeypatch):
    monkeypatch.setattr(KINDS["inline"], "text", False)
    parse_spec("inline").check(VisionLayout((4, 4)))
    parse_spec("inline").check(TextLayout(8, causal=False))
    for layout in (TextLayout(8), TextLayout(8, causal=False, padding=True)):
        with pytest.raises(SpecError, match="inline has no causal form for text towers"):
            parse_spec("inline").check(layout)


# --- patterns ---------------------------------------------------------------------------------------------------


@st.composite
def patterns(draw, depth=3):
    """A random pattern's text beside the layers it stands for, expanded by the test itself."""
    text, layers = [], []
    for _ in range(draw(st.integers(1, 3))):
        if depth and draw(st.booleans()):
            inner, specs = draw(patterns(depth=depth - 1))
            inner = f"({inner})"
        else:
            inner = draw(spec_texts())
            specs = [str(parse_spec(inner))]
        count = draw(st.integers(1, 4))
        counted = count > 1 or draw(st.booleans())
        text.append(f"{inner}*{count}" if counted else inner)
        layers += specs * count
    return "+".join(text), layers


@given(patterns())
@settings(max_examples=100)
def test_a_pattern_is_the_sum_of_its_terms(pattern):
    text, layers = pattern
    parsed = parse_pattern(text)
    if parsed.everywhere:
        assert len(layers) == 1
        assert [str(spec) for spec in parsed.layers(5)] == layers * 5
        return
    assert [str(spec) for spec in parsed.layers(len(layers))] == layers
    assert [str(s) for s in parse_pattern(spell(layers)).layers(len(layers))] == layers
    for wrong in (len(layers) - 1, len(layers) + 1):
        with pytest.raises(SpecError, match=rf"is for {len(layers)} layers? .*, but the tower has {wrong}"):
            parsed.layers(wrong)


@given(st.text(alphabet="eq47sfmatxol*+():=,0123456789 ", max_size=40))
def test_any_text_is_a_pattern_or_a_spec_error(text):
    with contextlib.suppress(SpecError):
        assert parse_pattern(text).specs


def test_the_message_counts():
    with pytest.raises(
        SpecError, match=r"'eq7\*9\+softmax\*2' is for 11 layers \(9 eq7 \+ 2 softmax\), but the tower has 12"
    ):
        parse_pattern("eq7*9+softmax*2").layers(12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eq7*", r"expected a count from 1 to 1000 after 'eq7\*', found the end"),
        ("eq7*0", r"expected a count .*, found '0'"),
        ("eq7*01", "expected a count"),
        ("eq7*-1", "expected a count"),
        ("eq7*٣", "expected a count"),
        ("eq7*2.5", "expected a count"),
        ("eq7*softmax", "found 'softmax'"),
        ("*3", "expected a kind or '\\(' after '', found '\\*'"),
        ("+eq7", "expected a kind"),
        ("eq7+", r"expected a kind or '\(' after 'eq7\+', found the end"),
        ("eq7++eq4", "expected a kind"),
        ("(eq7", r"expected '\)' after '\(eq7', found the end"),
        ("eq7)", r"expected '\+', '\*' or the end after 'eq7', found '\)'"),
        ("()*3", "expected a kind"),
        ("eq7*2*3", r"expected '\+', '\*' or the end|expected '\+'"),
        ("eq7*2(eq4)", "expected '\\+'"),
        ("eq7 * 9", "unknown kind 'eq7 '"),
        ("eq7*9+eq8*3", r"unknown kind 'eq8' \(did you mean"),
        ("eq7:scale=mean*2+eq7:scale=men", "scale='men' is not allowed"),
        ("eq7*1001", "1001 layers are more than 1000"),
        ("((eq7*900)*900)*900", "810000 layers are more than 1000"),
        ("(" * 21 + "eq7" + ")" * 21, "more than 20 groups inside each other"),
        ("(" * 5000, "more than 20 groups"),
        ("eq7*10001", "expected a count"),
        (7, "must be a string"),
    ],
)
def test_a_wrong_pattern_says_where(text, message):
    with pytest.raises(SpecError, match=message) as caught:
        parse_pattern(text)
    assert len(str(caught.value)) < 500
