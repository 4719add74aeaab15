"""The colour of every scheme, the same in all pictures and pages.

Okabe and Ito's palette, which stays apart under every common colour blindness; no two schemes differ by colour alone
where it counts, since pictures also name them or draw them with another dash or mark. Hues with a contrast below 3 on
white are darkened. On dark grounds black becomes white and some hues are lifted.
"""

from typing import NamedTuple


class Colour(NamedTuple):
    """One colour on light and on dark grounds."""

    light: str
    dark: str


SCHEMES = {
    "centralized": Colour("#000000", "#f2f2f2"),
    "decentralized": Colour("#0072b2", "#4aa8e0"),
    "decentralized literal": Colour("#3091cb", "#a5d8f5"),
    "receiver": Colour("#d55e00", "#ff8b3d"),
    "prices": Colour("#bf8300", "#ffc24d"),
    "prices alone": Colour("#665200", "#f0e442"),
    "myopic": Colour("#009e73", "#35c99f"),
    "uncoordinated": Colour("#cc79a7", "#e6a3c8"),
    # beyond the palette, by lightness and dash
    "battery_threshold": Colour("#7a3b2e", "#d9a08f"),
    "skiptrain": Colour("#5e4fa2", "#b7aee6"),
    "turns": Colour("#4d7a1f", "#a3d168"),
    "fixed_fraction": Colour("#a3123f", "#f08aa8"),
    "news": Colour("#17697a", "#6cc9d9"),
    "contributions": Colour("#8a1fb0", "#d797f2"),
}
OTHER = Colour("#666666", "#a6a6a6")  # schemes without a colour of their own, such as a lossless ideal

# Paul Tol's "muted" scheme: ten colours for classes of samples, never beside the schemes' own
CLASSES = (
    "#332288",
    "#88ccee",
    "#44aa99",
    "#117733",
    "#999933",
    "#ddcc77",
    "#cc6677",
    "#882255",
    "#aa4499",
    "#dddddd",
)
LINES = ("#332288", "#117733", "#999933", "#cc6677", "#882255", "#aa4499")  # those of them that lines can have
_DARK_END, _LIGHT_END = (0, 34, 78), (254, 232, 56)  # of a ramp of rising lightness, for more classes than colours


def scheme_colour(scheme: str) -> Colour:
    """The colour of a scheme by its name, or by the longest known name that it starts with."""
    words = scheme.split()
    for count in range(len(words), 0, -1):
        found = SCHEMES.get(" ".join(words[:count]))
        if found is not None:
            return found
    return OTHER


def class_colours(classes: int) -> list[str]:
    """One colour per class of samples."""
    if classes <= len(CLASSES):
        return list(CLASSES[:classes])
    shares = (index / (classes - 1) for index in range(classes))
    return [_mixed(share) for share in shares]


def _mixed(share: float) -> str:
    """A colour of the ramp, 0 dark to 1 light."""
    channels = (round((1 - share) * a + share * b) for a, b in zip(_DARK_END, _LIGHT_END, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)
