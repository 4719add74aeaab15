"""Draw the picture of the report page: answer and results on a light screen, curves and network on a dark one.

python -m tests.pages.screenshot report.html docs/pictures/report.png
"""

import base64
import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

from tests.pages.chromium import started

WIDTH, HEIGHT = 885, 1237  # of each half [px]
SCREEN = 1180  # width at which the page is laid out [px]
SECONDS = 1.0  # until all is drawn
LIGHT, DARK = "#answer", "#curves&slot=90"  # views, as the page's address names them


def half(browser: Any, page: Path, theme: str, view: str) -> Image.Image:
    """The page from a section on."""
    scale = WIDTH / SCREEN
    size = {"width": SCREEN, "height": round(HEIGHT / scale), "deviceScaleFactor": scale, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    browser.get("about:blank")
    browser.get(f"{page.resolve().as_uri()}{view}&theme={theme}")
    section = view[1:].split("&")[0]
    top = "0" if section == "answer" else f"document.getElementById('{section}').offsetTop - 10"
    browser.execute_script(f"document.querySelector('nav').style.position = 'static'; scrollTo(0, {top})")
    time.sleep(SECONDS)
    data = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def main(page: Path, target: Path) -> None:
    """Both halves side by side."""
    with tempfile.TemporaryDirectory() as profile:
        browsers = started(Path(profile))
        browser = next(browsers)
        picture = Image.new("RGB", (2 * WIDTH, HEIGHT))
        for number, (theme, view) in enumerate((("light", LIGHT), ("dark", DARK))):
            picture.paste(half(browser, page, theme, view), (number * WIDTH, 0))
        next(browsers, None)  # it ends
    picture.save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
