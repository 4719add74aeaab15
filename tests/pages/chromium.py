"""Headless Chromium for tests of pages, and what they do in it; tests are skipped where none is installed."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.webdriver.common.action_chains import ActionChains as ActionChains  # noqa: E402
from selenium.webdriver.common.by import By as By  # noqa: E402
from selenium.webdriver.common.keys import Keys as Keys  # noqa: E402
from selenium.webdriver.support.ui import Select as Select  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait as WebDriverWait  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
NEEDS_CHROMIUM = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no Chromium here: install the packages chromium and chromium-driver"
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1280,900",
)


def started(profile: Path) -> Iterator[Any]:
    """A browser that ends with its test module."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def opened_page(browser: Any, page: str, folder: Path) -> Any:
    """Open a page from the disk; its complaints and requests are judged when a test asks for them."""
    (folder / "report.html").write_text(page, encoding="utf-8")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get((folder / "report.html").as_uri())
    browser.execute_script("document.documentElement.style.scrollBehavior = 'auto'")  # clicks wait for no animation
    return browser


def by_id(browser: Any, name: str) -> Any:
    """An element."""
    return browser.find_element(By.ID, name)


def slot(browser: Any) -> int:
    """The slot that the player shows."""
    return int(by_id(browser, "slot").text.split()[1])


def complaints(browser: Any) -> list[str]:
    """What the console says."""
    return [entry["message"] for entry in browser.get_log("browser")]


def click(browser: Any, name: str) -> None:
    """Click what may be out of sight."""
    element = by_id(browser, name)
    browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", element)
    element.click()


def press(browser: Any, *keys: str) -> None:
    """Type keys."""
    ActionChains(browser).send_keys(*keys).perform()
