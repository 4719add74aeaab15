"""A page on sizing: the contour picture and its numbers in one HTML file that makes no request and runs no script.

It is dark on screens that are; a browser chooses the picture.
"""

import base64
from html import escape

from heliomesh.pages.contour import DARK, LIGHT, contour_svg
from heliomesh.pages.intervals import cell
from heliomesh.pages.page import filled
from heliomesh.pages.sizing_words import description
from heliomesh.scenario.scenario import Scenario
from heliomesh.studies.sizing import BatteryPanel, Prices, Sizing


def sizing_page(sizing: Sizing, scenario: Scenario, title: str, prices: Prices | None = None) -> str:
    """The page as text."""
    light, dark = (_image(contour_svg(sizing, title, prices, look)) for look in (LIGHT, DARK))
    smallest = _table(sizing, sizing.smallest, prices) if sizing.smallest else "<p>None of those tried.</p>"
    parts = {"title": escape(title), "told": escape(description(sizing, prices)), "light": light, "dark": dark}
    parts |= {"smallest": smallest, "pairs": _table(sizing, sorted(sizing.axes.pairs), prices)}
    return filled("sizing.html", parts | {"scenario": escape(scenario.to_toml())})


def _image(svg: str) -> str:
    """A picture within its own address."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode('ascii')}"


def _table(sizing: Sizing, pairs: list[BatteryPanel], prices: Prices | None) -> str:
    heads = ["battery [J]", f"panel [{sizing.axes.panel_unit}]", sizing.target.measure, "± (95 %)"]
    heads += ["dark", "meets it", *([] if prices is None else ["price"])]
    rows = []
    for pair in pairs:
        found = sizing.found.get(pair)
        numbers = ["not tried", "", ""]
        if found is not None:
            numbers = [f"{found.mean:.4f}", f"{found.half_width:.4f}", f"{found.dark.mean:.1%}"]
        price = cell(prices and sizing.axes.price(pair, prices), "g")
        cells = [f"{pair.panel:g}", *numbers, "yes" if sizing.meets(pair) else "no", *([price] if prices else [])]
        values = "".join(f"<td>{one}</td>" for one in cells)
        rows.append(f'<tr><th scope="row">{pair.capacity_joule:g}</th>{values}</tr>')
    head, body = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads), "\n".join(rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<div class="scroll hinted" tabindex="0" role="region" aria-label="Pairs">{table}</div>'
