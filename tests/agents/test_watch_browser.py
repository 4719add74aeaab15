"""The live page in a real browser: headless Chromium, where one is installed."""

from pathlib import Path
from typing import Any

import pytest

from tests.agents.network import small  # it skips where Zenoh is not installed
from tests.agents.test_watch import journal_line
from tests.pages.chromium import NEEDS_CHROMIUM, by_id, click, complaints, opened_page, slot
from tests.pages.conftest import browser as browser

from heliomesh.agents.watch import Watched  # isort: skip


@NEEDS_CHROMIUM
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_live_page_in_a_browser(browser: Any, tmp_path: Path, theme: str) -> None:
    problem = small(**{"network.devices": 3, "slots": 6})
    watched = Watched(problem)
    for device in range(3):
        for line_slot in range(5):
            watched.hear(device, journal_line(problem, device, line_slot, 1.0))
    page = opened_page(browser, watched.page().decode(), tmp_path)
    if page.execute_script("return document.documentElement.dataset.theme") != theme:
        click(page, "theme")
    assert slot(page) == 5  # the newest
    assert "no accuracy is known" in by_id(page, "missing-list").text
    back, ink = page.execute_script(
        "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color].map("
        "(c) => c.match(/[0-9]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0))"
    )
    assert (back > ink) == (theme == "light")
    assert complaints(page) == []
