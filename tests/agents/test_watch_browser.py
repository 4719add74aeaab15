"""The live page in a real browser: headless Chromium, where one is installed."""

from pathlib import Path
from typing import Any

import pytest

from tests.agents.lines import idle_line, signed
from tests.agents.network import READY, small  # it skips where Zenoh is not installed
from tests.pages.chromium import NEEDS_CHROMIUM, by_id, click, complaints, opened_page, slot
from tests.pages.conftest import browser as browser

from heliomesh.field.agents.heard import Heard  # isort: skip
from heliomesh.field.agents.live_page import LivePage


def mark(page: Any, device: int) -> list[int]:
    """The colours around a device's number, as they are drawn."""
    found: list[int] = page.execute_script(
        "const [scene] = player.scenes; const [x, y] = scene.places[arguments[0]];"
        "const d = window.devicePixelRatio || 1, drawn = scene.pen.canvas;"
        "const copy = document.createElement('canvas');"  # reading the scene itself slows it, and Chromium says so
        "[copy.width, copy.height] = [drawn.width, drawn.height];"
        "const pen = copy.getContext('2d', {willReadFrequently: true}); pen.drawImage(drawn, 0, 0);"
        "const r = scene.radius * 0.7; return [[0, r], [r, -r * 0.7], [-r * 0.7, -r]].flatMap(([dx, dy]) =>"
        "Array.from(pen.getImageData(Math.round((x + dx) * d), Math.round((y + dy) * d), 1, 1).data))",
        device,
    )
    return found


@NEEDS_CHROMIUM
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_live_page_in_a_browser(browser: Any, tmp_path: Path, theme: str) -> None:
    problem = small(**{"network.devices": 3, "slots": 6})
    heard = Heard(problem, READY)
    for device, slots in enumerate((range(1, 6), range(1, 6), range(1, 3))):
        for line_slot in slots:
            heard.hear(device, signed(idle_line(problem, device, line_slot)))
    page = opened_page(browser, LivePage(heard, "decentralized", {}, 0).html(), tmp_path)
    if page.execute_script("return document.documentElement.dataset.theme") != theme:
        click(page, "theme")
    assert slot(page) == 5  # the newest
    assert "no accuracy is known" in by_id(page, "missing-list").text
    assert "Device 2 has not been heard since slot 2" in by_id(page, "missing-list").text
    assert by_id(page, "missing-key").is_displayed()
    label = page.find_element("css selector", "canvas.scene").get_attribute("aria-label")
    assert "heard 2 of 3" in label
    assert "device 2 not heard since slot 2" in label
    marks = [mark(page, device) for device in range(3)]
    assert marks[0] == marks[1] != marks[2]
    click(page, "back")
    click(page, "back")
    click(page, "back")
    assert slot(page) == 2
    assert mark(page, 2) == marks[0]  # it was there
    back, ink = page.execute_script(
        "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color].map("
        "(c) => c.match(/[0-9]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0))"
    )
    assert (back > ink) == (theme == "light")
    assert complaints(page) == []
