"""Colours: legible on every ground, and told apart by readers with deuteranopia."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from heliomesh.pages.colours import GROUNDS, INKS, LINES, OTHER, SCHEMES, Colour, theme_css

LEAST_CONTRAST = 3.0  # WCAG 2.1, success criterion 1.4.11, of graphical objects
LEAST_DISTANCE = 7.5  # in Oklab times 100, where about 2 is just noticeable
# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as deuteranopes see it
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
# Ottosson 2020: linear RGB to cone responses, and their cube roots to Oklab
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
THEMES = ("light", "dark")
Vector = npt.NDArray[np.float64]


def linear(colour: str) -> Vector:
    """Linear RGB, 0 to 1, of #rrggbb."""
    encoded = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of relative luminances, 1 to 21."""
    dark, light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def oklab(rgb: Vector) -> Vector:
    return OKLAB @ np.cbrt(CONES @ np.clip(rgb, 0, 1)) * 100


def distance(one: str, other: str, seen_by: Vector) -> float:
    return float(np.linalg.norm(oklab(seen_by @ linear(one)) - oklab(seen_by @ linear(other))))


def test_the_measures_are_those_of_their_sources() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the grey that just misses 4.5
    assert distance("#000000", "#ffffff", np.eye(3)) == pytest.approx(100, abs=0.01)
    assert distance("#ff0000", "#808000", DEUTERANOPIA) < distance("#ff0000", "#808000", np.eye(3)) / 2


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", [*SCHEMES, *INKS, "other"])
def test_every_colour_stands_out_from_every_ground(name: str, theme: str) -> None:
    colour: Colour = {**SCHEMES, **INKS, "other": OTHER}[name]
    for ground in GROUNDS.values():
        assert contrast(getattr(colour, theme), getattr(ground, theme)) >= LEAST_CONTRAST


@pytest.mark.parametrize("theme", THEMES)
def test_texts_have_the_contrast_of_texts(theme: str) -> None:
    for ink, ground in ((ink, ground) for ink in ("text", "muted", "accent") for ground in GROUNDS.values()):
        assert contrast(getattr(INKS[ink], theme), getattr(ground, theme)) >= 4.5
    assert contrast(getattr(INKS["text"], theme), getattr(INKS["battery"], theme)) >= 3  # numbers of devices


def test_lines_of_pictures_stand_out_from_paper() -> None:
    assert min(contrast(colour, "#ffffff") for colour in LINES) >= LEAST_CONTRAST


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("seen_by", [np.eye(3), DEUTERANOPIA], ids=["trichromat", "deuteranope"])
def test_schemes_are_told_apart(theme: str, seen_by: Vector) -> None:
    colours = {name: getattr(colour, theme) for name, colour in (*SCHEMES.items(), ("other", OTHER))}
    near = {
        pair: distance(colours[pair[0]], colours[pair[1]], seen_by)
        for pair in combinations(colours, 2)
        if distance(colours[pair[0]], colours[pair[1]], seen_by) < LEAST_DISTANCE
    }
    assert near == {}


def test_the_style_has_every_colour_in_both_themes() -> None:
    style = theme_css()
    for name, colour in (GROUNDS | INKS).items():
        assert style.count(f"--{name}: {colour.light};") >= 1
        assert style.count(f"--{name}: {colour.dark};") >= 2  # by the system's choice and by the reader's
