"""Small rules of the page."""

import pytest

from evaluate import page


@pytest.mark.parametrize(("number", "text"), [(13619137, "13.6 M"), (150784, "150,784"), (24, "24")])
def test_large_numbers_as_people_say_them(number: int, text: str) -> None:
    assert page.spoken(number) == text


def test_a_missing_part_is_an_error_not_a_hole() -> None:
    with pytest.raises(KeyError):
        page.fill({"title": "x"})


def test_commands_are_escaped() -> None:
    html = page.commands([("Train <x>", 'python -m training --name "<a>&"')])
    assert "<x>" not in html
    assert "<a>" not in html
    assert "--name &quot;&lt;a&gt;&amp;&quot;" in html


def test_overview_counts_what_there_is() -> None:
    said = page.overview({"runs": 2, "zero-shot results": 1, "retrieval results": 0}, ["a", "<b>"])
    assert said == "2 runs, 1 zero-shot result of a, &lt;b&gt;."


def test_sections_without_content_are_left_away() -> None:
    html = page.sections([("One <1>", "<p>x</p>"), ("Two", "")])
    assert html == "<section>\n<h2>One &lt;1&gt;</h2>\n<p>x</p>\n</section>"


def test_facts_have_a_dash_where_nothing_is_known() -> None:
    html = page.facts([("a", {"Steps": "<5>"}), ("b", {"Batch size": "4"})])
    assert html.count("<td>–</td>") == 2
    assert "&lt;5&gt;" in html
    assert page.facts([]) == ""
