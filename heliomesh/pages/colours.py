"""The colours of pages and pictures: of every scheme, the same everywhere, and of the page's own marks.

Schemes began as Okabe and Ito's palette. They were then moved apart until every pair is told apart under deuteranopia
and each has a contrast of 3 with all grounds; `tests/pages/test_colours.py` computes both. Pictures also name schemes
or draw them with another dash or mark.
"""

from typing import NamedTuple


class Colour(NamedTuple):
    """One colour on light and on dark grounds."""

    light: str
    dark: str


SCHEMES = {
    "centralized": Colour("#000000", "#f2f2f2"),
    "decentralized": Colour("#2472b0", "#46aef2"),
    "decentralized literal": Colour("#0192ce", "#abdcf8"),
    "receiver": Colour("#db670a", "#f17d27"),
    "prices": Colour("#a56400", "#ffcb4f"),
    "prices alone": Colour("#5a4b00", "#fff95f"),
    "myopic": Colour("#079563", "#05cdbe"),
    "uncoordinated": Colour("#c06e9f", "#ffa3ab"),
    "battery_threshold": Colour("#5e200c", "#b97b5a"),
    "skiptrain": Colour("#4b3c84", "#b2b7fb"),
    "turns": Colour("#055744", "#b8c65d"),
    "fixed_fraction": Colour("#b3062f", "#e18684"),
    "news": Colour("#0e657b", "#47abb5"),
    "contributions": Colour("#810cb5", "#a272cc"),
    "bids": Colour("#100a60", "#2b69ff"),
}
OTHER = Colour("#686868", "#858585")  # schemes without a colour of their own, such as a lossless ideal

GROUNDS = {  # behind texts and marks
    "ground": Colour("#f4f6f8", "#11151a"),
    "card": Colour("#ffffff", "#1a2028"),
    "faint": Colour("#edf0f4", "#242c36"),
}
INKS = {  # texts and marks that carry meaning
    "text": Colour("#1b212a", "#e9edf2"),
    "muted": Colour("#566171", "#a5b0bd"),
    "accent": Colour("#0b5cad", "#7cbcf5"),
    "notice-line": Colour("#9a7400", "#b98f1c"),
    "sun": Colour("#a87400", "#ffcf57"),
    "battery": Colour("#3f8a79", "#3d8f7f"),
    "arrives": Colour("#0072b2", "#5ab4f0"),
    "drops": Colour("#c34a00", "#ff8b3d"),
    "link": Colour("#7d8a99", "#7b8896"),
}
_OTHERS = {
    "line": Colour("#d5dbe3", "#36404c"),  # between rows and along grids, which say nothing by themselves
    "notice": Colour("#fff6e0", "#2e2710"),
    "on-accent": Colour("#ffffff", "#0e1722"),
    "shade": Colour("rgb(27 33 42 / .28)", "rgb(0 0 0 / .75)"),  # at the edge of a table that goes on
}

# those of Paul Tol's "muted" scheme that lines can have, never beside the schemes' own
LINES = ("#332288", "#117733", "#999933", "#cc6677", "#882255", "#aa4499")


def scheme_colour(scheme: str) -> Colour:
    """The colour of a scheme by its name, or by the longest known name that it starts with."""
    words = scheme.split()
    names = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((SCHEMES[name] for name in names if name in SCHEMES), OTHER)


def theme_css() -> str:
    """The page's variables: light, dark where the system or the reader's choice says so."""
    colours = GROUNDS | INKS | _OTHERS
    light, dark = (
        f"color-scheme: {theme}; "
        + " ".join(f"--{name}: {getattr(colour, theme)};" for name, colour in colours.items())
        for theme in ("light", "dark")
    )
    system = f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme]) {{ {dark} }} }}"
    return f':root {{ {light} }}\n{system}\n:root[data-theme="dark"] {{ {dark} }}\n'
