"""Small rules of the page."""

import pytest

from evaluate import page


@pytest.mark.parametrize(
    ("value", "text"), [(0.0568, "0.06"), (4.312, "4.31"), (22.64, "22.6"), (100, "100"), (0, "0"), (99.96, "100.0")]
)
def test_figures_have_two_decimals_where_they_matter(value: float, text: str) -> None:
    assert page.figure(value) == text


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
