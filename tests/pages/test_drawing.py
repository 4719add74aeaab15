"""What all pictures share."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from heliomesh.pages.colours import LINES, OTHER, SCHEMES
from heliomesh.pages.drawing import drawing, svg_text

SPACE = "{http://www.w3.org/2000/svg}"


def picture(title: str) -> str:
    with drawing():
        figure = Figure()
        figure.subplots().set_title(title)
        return svg_text(figure, title, f"about {title}")


@pytest.mark.parametrize("title", ["a $5 panel", r"$\bad{$", "</title><script>", "雪 and ☃", "a_b ^ c"])
def test_a_name_is_drawn_as_it_is(title: str) -> None:
    root = ElementTree.fromstring(picture(title))  # noqa: S314
    assert root.attrib["role"] == "img"
    assert root.find(f"{SPACE}title").text == title  # type: ignore[union-attr]
    assert root.find(f"{SPACE}desc").text == f"about {title}"  # type: ignore[union-attr]
    assert title in [text.text for text in root.iter(f"{SPACE}text")]


def test_equal_pictures_are_equal_bytes() -> None:
    assert picture("one") == picture("one")


def luminance(colour: str) -> float:
    """Relative luminance as the WCAG define it."""
    channels = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), channels, strict=True))


@pytest.mark.parametrize("colour", [*(colour.light for colour in SCHEMES.values()), OTHER.light, *LINES])
def test_every_line_stands_out_from_white(colour: str) -> None:
    assert 1.05 / (luminance(colour) + 0.05) >= 3


def test_commands_that_draw_nothing_start_without_matplotlib() -> None:
    code = "import sys, heliomesh.cli, heliomesh.pages.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
