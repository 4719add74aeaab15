"""What sizing found, in words: for the terminal, and beside the picture."""

from heliomesh.studies.sizing import BatteryPanel, Prices, Sizing


def description(sizing: Sizing, prices: Prices | None = None) -> str:
    """What the picture shows, for those who cannot see it."""
    target, pairs = sizing.target, sizing.smallest
    limit, each = ("least", "") if target.measure == "accuracy" else ("most", " per device and slot")
    aim = f"{target.measure} of at {limit} {target.value:g}"
    text = f"Mean {target.measure}{each} of {len(sizing.found)} pairs of battery capacity and panel; target: {aim}. "
    if sizing.is_drained:
        text += f"At most {100 * target.most_dark:g} % of device slots may be dark. "
    if not pairs:
        return text + f"No pair meets it; the best is {in_words(sizing, sizing.best)}."
    text += "The smallest pairs that meet it: " + "; ".join(in_words(sizing, pair) for pair in pairs) + "."
    text += "" if prices is None else f" The cheapest is {in_words(sizing, sizing.cheapest(prices))}."
    return " ".join([text, *border_notes(sizing)])


def in_words(sizing: Sizing, pair: BatteryPanel) -> str:
    """A pair with what was found there."""
    found = sizing.found[pair]
    dark = f", {100 * found.dark.mean:.1f} % dark" if sizing.is_drained else ""
    return f"{_named(sizing, pair)} ({found.mean:.4g} ± {found.half_width:.2g}{dark})"


def _named(sizing: Sizing, pair: BatteryPanel) -> str:
    joule, panel = pair
    return f"{joule:g} J with {panel:g} {sizing.axes.panel_unit}"


def border_notes(sizing: Sizing) -> list[str]:
    """A sentence for each of the smallest pairs beyond which nothing was tried."""
    lies = "lies at the border of the grid"
    return [
        f"{_named(sizing, pair)} {lies} ({' and '.join(border)}): nothing beyond was tried."
        for pair, border in sizing.at_border.items()
    ]
