"""Each section: its figures are on the page, hostile texts are text, and malformed results are no records."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import results
from html_page import Page
from results import HOSTILE

from evaluate.found import BROKEN
from evaluate.looking import dispersion as measuring
from evaluate.sections import attention, comparison, dispersion, probe, retrieval, scaling, values, zero_shot
from evaluate.sections.registry import SECTIONS
from evaluate.sections.values import Subject

FORMS: list[tuple[ModuleType, Callable[..., dict[str, Any]]]] = [
    (zero_shot, results.zero_shot),
    (retrieval, results.retrieval),
    (scaling, results.scaling),
    (comparison, results.comparison),
    (probe, results.probe),
    (attention, results.attention),
]


def name_of(subject: Subject) -> tuple[str, str]:
    return f"label of {subject.model}", "s2"


def shown(module: ModuleType, *contents: dict[str, Any]) -> Page:
    html = module.section([module.read(Path("/f/r.json"), content) for content in contents], name_of)
    assert HOSTILE not in html
    page = Page(html)
    page.check_self_contained()
    return page


@pytest.mark.parametrize(("module", "make"), FORMS)
def test_a_result_is_known_by_its_own_section_alone(module: ModuleType, make: Callable[..., dict[str, Any]]) -> None:
    assert [other for other, _ in SECTIONS if other.is_one(make())] == [module]
    assert not module.is_one({"model": "m", "results": []})


@pytest.mark.parametrize(("module", "make"), FORMS)
def test_hostile_texts_are_text(module: ModuleType, make: Callable[..., dict[str, Any]]) -> None:
    assert HOSTILE in shown(module, make()).text


def assert_told(
    module: ModuleType, whole: dict[str, Any], within: Callable[[dict[str, Any]], dict[str, Any]] = lambda part: part
) -> None:
    """With one value wrong it is either refused when read, or it can be shown: never an error on the page."""
    for name in whole:
        for wrong in (None, [], {}, "x", -1, float("nan"), [None], {"x": None}):
            try:
                record = module.read(Path("r.json"), within({**whole, name: wrong}))
            except BROKEN:
                continue
            module.section([record], name_of)


@pytest.mark.parametrize(("module", "make"), FORMS)
def test_wrong_values_are_told(module: ModuleType, make: Callable[..., dict[str, Any]]) -> None:
    assert_told(module, make())


def test_wrong_figures_are_told() -> None:
    assert_told(zero_shot, results.figures(), lambda row: results.zero_shot(results={"a": row}))
    recalls = results.retrieval()["results"]
    assert_told(retrieval, recalls, lambda row: results.retrieval(results=row))
    fit, point = results.scaling()["fits"][0], results.scaling()["points"][0]
    assert_told(scaling, fit, lambda part: results.scaling(fits=[part]))
    assert_told(scaling, point, lambda part: results.scaling(points=[part, point]))
    compared = next(iter(results.comparison()["sets"].values()))
    assert_told(comparison, compared, lambda part: results.comparison(sets={"x": part}))
    assert_told(probe, results.figures(), lambda row: results.probe(results={"linear": row}))
    layer = results.attention()["pictures"][0]["layers"][0]
    assert_told(attention, layer, lambda part: results.attention(pictures=[{"file": "f", "layers": [part]}]))


def test_zero_shot_figures_intervals_marks_and_chance() -> None:
    page = shown(
        zero_shot,
        results.zero_shot(partial=True, limit=100, bad=3, templates={"name": "simple"}, decoder="torchvision"),
    )
    assert "top-1 with equal names as one: 12.9" in page.text
    for text in (
        "12.3",
        "30.1–36.6",
        "10.4–14.6",
        "33.3",
        "11.1",
        "1,000 pictures, 200 classes",
        "0.50",
        "2.50",
        "c0ffee00",
    ):
        assert text in page.text
    assert "partial · --limit 100 · templates simple · decoder torchvision · 3 unreadable" in page.text
    bars = [attributes for tag, attributes in page.tags if tag == "rect" and "fill" in (attributes["class"] or "")]
    assert [bar["width"] for bar in bars[:2]] == ["66.60%", "24.69%"]  # of 50 %: top-5 and top-1


def test_only_results_on_the_same_pictures_share_a_block() -> None:
    same, other = results.zero_shot(), results.zero_shot(lists={"": "ef" * 32})
    alone = shown(zero_shot, same, same)
    assert (alone.text.count("chance"), alone.text.count("other pictures")) == (1, 0)
    apart = shown(zero_shot, same, other)
    assert apart.text.count("chance") == 2
    assert "list 1 of 2 (other pictures)" in apart.text
    assert "list 2 of 2 (other pictures)" in apart.text


def test_sets_have_their_titles_and_order() -> None:
    rows = {"a": results.figures(), "b": results.figures()}
    sets = {name: {"title": f"Set {name}", "folder": "", "about": f"about {HOSTILE}"} for name in "ba"}
    text = shown(zero_shot, results.zero_shot(results=rows, sets=sets)).text
    assert text.index("Set b") < text.index("Set a")
    assert f"about {HOSTILE}" in text
    with pytest.raises(ValueError, match="its sets are"):
        zero_shot.read(Path("r"), results.zero_shot(results=rows, sets={"a": sets["a"]}))


@pytest.mark.parametrize("changes", [{"top1": 101}, {"top1": "12"}, {"n": -1}, {"classes": 0}, {"interval": [3, 2]}])
def test_impossible_figures_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BROKEN):
        zero_shot.read(Path("r"), results.zero_shot(results={"a": results.figures(**changes)}))


def test_retrieval_recalls_and_what_was_unreadable() -> None:
    text = shown(retrieval, results.retrieval()).text
    for figure in ("6.50", "10.5", "15.5", "1.00–20.0", "77 pictures", "2 unreadable"):
        assert figure in text


def test_probe_has_each_classifier() -> None:
    text = shown(probe, results.probe()).text
    for figure in ("4,321 training and 1,234 test pictures", "linear · ", "--limit 5", "12.3", "10.4–14.6", "33.3"):
        assert figure in text


def test_comparison_has_differences_and_p() -> None:
    text = shown(comparison, results.comparison()).text
    for figure in ("+2.50", "10.0", "12.5", "11", "33", "0.0012", "1,234 pictures"):
        assert figure in text


def test_scaling_table_and_plot() -> None:
    page = shown(scaling, results.scaling())
    assert "0.250" in page.text
    assert "0.200–0.300" in page.text
    (image,) = [attributes for tag, attributes in page.tags if tag == "img"]
    assert (image["src"] or "").startswith("data:image/svg+xml;base64,")
    content = results.scaling()
    content["points"][0]["training_loss"] = 0
    with pytest.raises(ValueError, match="positive"):
        scaling.read(Path("r"), content)


def test_attention_is_a_mean_over_heads_and_pictures() -> None:
    text = shown(attention, results.attention()).text
    assert "3.0" in text  # of 1, 2, 3 and 6
    assert "25.0" in text  # percent negative: of 0 and 0.5
    assert "6 patches" in text


@pytest.fixture(scope="module")
def dispersed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A real dispersion result, of few keys."""
    folder = tmp_path_factory.mktemp("dispersion")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "LARGEST", 9)
        measuring.write_dispersion(folder, [measuring.drawn(True)], lambda count: None)
    found: dict[str, Any] = json.loads((folder / "dispersion.json").read_text())
    return found


def test_dispersion_as_it_is_written(dispersed: dict[str, Any]) -> None:
    assert [module for module, _ in SECTIONS if module.is_one(dispersed)] == [dispersion]
    page = shown(dispersion, dispersed)
    assert "compact features, N up to 512" in page.text
    assert f"{dispersed['features']['compact']['kinds']['softmax']['largest_share']['exponent']:.2f}" in page.text
    assert [tag for tag, _ in page.tags].count("img") == 1
    assert_told(dispersion, dispersed)
    assert_told(dispersion, dispersed["features"]["compact"], lambda part: {**dispersed, "features": {"x": part}})


@pytest.mark.parametrize(
    ("value", "text"), [(0.0568, "0.06"), (4.312, "4.31"), (22.64, "22.6"), (100, "100"), (0, "0"), (99.96, "100.0")]
)
def test_figures_have_two_decimals_where_they_matter(value: float, text: str) -> None:
    assert values.figure(value) == text
