"""A page on sizing: the contour picture and its numbers in one HTML file that makes no request and runs no script.

It is dark on screens that are; a browser chooses the picture.
"""

import base64
from html import escape

from heliomesh.pages.contour import DARK, LIGHT, contour_svg, description
from heliomesh.pages.page import page_style, source_hash
from heliomesh.scenario.scenario import Scenario
from heliomesh.studies.sizing import BatteryPanel, Prices, Sizing


def sizing_page(sizing: Sizing, scenario: Scenario, title: str, prices: Prices | None = None) -> str:
    """The page as text."""
    style = page_style()
    light, dark = (_image(contour_svg(sizing, title, prices, look)) for look in (LIGHT, DARK))
    told = escape(description(sizing, prices))
    policy = (
        f"default-src 'none'; style-src '{source_hash(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<header class="top"><div><h1>{escape(title)}</h1><p class="muted">{told}</p></div></header>
<main>
<section class="card">
<div class="scroll" tabindex="0" role="region" aria-label="Picture">
<picture>
<source media="(prefers-color-scheme: dark)" srcset="{dark}">
<img class="picture" alt="{told}" src="{light}">
</picture>
</div>
</section>
<section class="card">
<h2>Smallest pairs that meet the target</h2>
{_table(sizing, sizing.smallest, prices) if sizing.smallest else "<p>None of those tried.</p>"}
<details><summary>All pairs</summary>
{_table(sizing, sorted(sizing.axes.pairs), prices)}
</details>
</section>
<section class="card">
<h2>Scenario</h2>
<p class="small muted">Capacity, grid and panel were replaced by those of each pair.</p>
<pre>{escape(scenario.to_toml())}</pre>
</section>
</main>
<footer class="muted small">All data of this page are inside the file. It makes no request.</footer>
</body>
</html>
"""


def _image(svg: str) -> str:
    """A picture within its own address."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode('ascii')}"


def _table(sizing: Sizing, pairs: list[BatteryPanel], prices: Prices | None) -> str:
    heads = ["battery [J]", f"panel [{sizing.axes.panel_unit}]", sizing.target.measure, "± (95 %)"]
    heads += ["dark", "meets it"]
    heads += [] if prices is None else ["price"]
    rows = ["".join(f'<th scope="col">{escape(head)}</th>' for head in heads)]
    for pair in pairs:
        found = sizing.found.get(pair)
        numbers = ["not tried", "", ""]
        if found is not None:
            numbers = [f"{found.mean:.4f}", f"{found.half_width:.4f}", f"{found.dark.mean:.1%}"]
        cells = [f"{pair.panel:g}", *numbers, "yes" if sizing.meets(pair) else "no"]
        cells += [] if prices is None else [f"{sizing.axes.price(pair, prices):g}"]
        values = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<th scope="row">{pair.capacity_joule:g}</th>{values}')
    body = "\n".join(f"<tr>{row}</tr>" for row in rows[1:])
    table = f"<table><thead><tr>{rows[0]}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<div class="scroll hinted" tabindex="0" role="region" aria-label="Pairs">{table}</div>'
