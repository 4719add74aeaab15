"""The report page in a real browser: headless Chromium, where one is installed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.pages.page import render, report_page
from heliomesh.pages.page_data import page_data
from tests.pages.chromium import (
    NEEDS_CHROMIUM,
    ActionChains,
    By,
    Keys,
    Select,
    WebDriverWait,
    by_id,
    click,
    complaints,
    opened_page,
    press,
    slot,
)
from tests.pages.conftest import make_run

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def finished_page(finished_runs: list[Path]) -> str:
    return report_page(finished_runs)


@pytest.fixture
def opened(browser: Any, finished_page: str, tmp_path: Path) -> Any:
    return opened_page(browser, finished_page, tmp_path)


def test_it_loads_without_complaints_and_requests(opened: Any) -> None:
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    asked = [url for url in asked if not url.startswith(("chrome:", "data:"))]  # Chromium's own start page
    assert asked == [opened.current_url]
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert opened.find_elements(By.CSS_SELECTOR, "#results-table tbody tr")
    assert complaints(opened) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_gap_ledger_has_a_line_and_a_bar(
    browser: Any, finished_runs: list[Path], run_with_ledger: Path, tmp_path: Path, theme: str
) -> None:
    page = opened_page(browser, report_page([finished_runs[0], run_with_ledger]), tmp_path)
    if page.execute_script("return document.documentElement.dataset.theme") != theme:
        click(page, "theme")
    (row,) = page.find_elements(By.CSS_SELECTOR, "#gap-ledger-table tbody tr")
    cells = [cell.text.replace("−", "-") for cell in row.find_elements(By.TAG_NAME, "td")]
    gap, *parts = map(float, cells[:4])
    assert sum(parts) == pytest.approx(gap, abs=0.02)  # four numbers of two digits
    (bar,) = row.find_elements(By.CLASS_NAME, "stack")
    assert "steps not trained" in bar.get_attribute("aria-label")
    assert any(part.size["width"] > 0 for part in bar.find_elements(By.TAG_NAME, "span"))
    assert complaints(page) == []


def test_lossy_energy_has_columns_of_its_own(browser: Any, opened: Any, lossy_run: Path, tmp_path: Path) -> None:
    heads = "#ledger thead th"
    assert not any("leaked" in head.text for head in opened.find_elements(By.CSS_SELECTOR, heads))
    page = opened_page(browser, report_page([lossy_run]), tmp_path)
    found = [head.text.splitlines()[0] for head in page.find_elements(By.CSS_SELECTOR, heads)]
    assert found[4:10] == [
        "on training",
        "on sending",
        "standing by",
        "in the converter",
        "lost in charging",
        "leaked",
    ]
    (bar,) = page.find_elements(By.CSS_SELECTOR, "#ledger tbody .stack")
    assert "lost" in bar.get_attribute("aria-label")
    assert len(bar.find_elements(By.TAG_NAME, "span")) == 4
    assert complaints(page) == []


def test_without_a_gap_ledger_there_is_no_table_of_it(opened: Any) -> None:
    assert not by_id(opened, "gap-ledger").is_displayed()
    assert complaints(opened) == []


def test_the_policy_stops_what_is_not_the_pages_own(opened: Any) -> None:
    script = (
        "const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s);"
    )
    opened.execute_script(script)
    opened.execute_script("const i = new Image(); i.src = 'file:///x.png'; document.body.append(i);")
    assert opened.execute_script("return window.broken") is None
    WebDriverWait(opened, 5).until(lambda _: len(complaints(opened)) >= 1)


def test_hostile_names_do_nothing(browser: Any, tmp_path: Path) -> None:
    name = "</script><img src=x onerror=window.broken=1>"
    folder = make_run(tmp_path / "<b>run<", "uncoordinated", 0, "--set", f'name="{name}"')
    opened_page(browser, report_page([folder]), tmp_path)
    assert browser.execute_script("return [document.images.length, window.broken ?? null]") == [0, None]
    assert name in browser.find_element(By.TAG_NAME, "h1").text
    told = browser.find_element(By.CSS_SELECTOR, "#each-origin-table tbody th")
    assert told.get_attribute("textContent") == "<b>run<"
    assert complaints(browser) == []


def test_the_player_plays_and_pauses(opened: Any) -> None:
    Select(by_id(opened, "speed")).select_by_visible_text("20 slots/s")
    before = opened.execute_script("return document.querySelector('.scene').toDataURL()")
    click(opened, "play")
    WebDriverWait(opened, 10).until(lambda _: slot(opened) > 3)
    assert opened.execute_script("return document.querySelector('.scene').toDataURL()") != before
    WebDriverWait(opened, 10).until(lambda _: by_id(opened, "play").text == "Play")  # it ends by itself
    assert slot(opened) == 12
    assert complaints(opened) == []


def test_keys_move_the_player(opened: Any) -> None:
    press(opened, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert slot(opened) == 3
    press(opened, Keys.ARROW_LEFT)
    assert slot(opened) == 2
    press(opened, Keys.END)
    assert slot(opened) == 12
    press(opened, Keys.HOME)
    assert slot(opened) == 1
    press(opened, Keys.SPACE)
    assert by_id(opened, "play").text == "Pause"
    press(opened, Keys.SPACE)
    assert by_id(opened, "play").text == "Play"


def test_the_player_tells_the_trace(opened: Any, finished_runs: list[Path]) -> None:
    trace = hm.Trace.load(finished_runs[0] / "trace.npz")
    press(opened, *[Keys.ARROW_RIGHT] * 4)
    facts = opened.find_element(By.CSS_SELECTOR, ".player .facts").text.replace("\n", " ")
    sent = (trace.power_watt[0, 4] > 0)[trace.edge_sender]
    assert f"training {trace.scheduled[0, 4].sum()} of 5" in facts
    assert f"sending {(trace.power_watt[0, 4] > 0).sum()} of 5" in facts
    assert f"arrived {trace.delivered[0, 4].sum()} of {sent.sum()} packet" in facts
    assert f"update loss {trace.update_loss[0, 4].sum():.2f}"[:-1] in facts


def test_all_kinds_of_actions_have_their_colours(browser: Any, separate_run: Path, tmp_path: Path) -> None:
    page = opened_page(browser, report_page([separate_run]), tmp_path)
    trace = hm.Trace.load(separate_run / "trace.npz")
    for device in range(5):
        Select(by_id(page, "device-number")).select_by_value(str(device))
        sends, trains = trace.power_watt[0, :, device] > 0, trace.scheduled[0, :, device]
        slots = {"both": sends & trains, "sends": sends & ~trains, "trains": trains & ~sends}
        bars = page.find_elements(By.CSS_SELECTOR, "#device-view path[data-kind]")
        drawn = {bar.get_attribute("data-kind"): bar.get_attribute("d").count("M") for bar in bars}
        assert drawn == {kind: int(where.sum()) for kind, where in slots.items() if where.any()}
        inks = {bar.value_of_css_property("fill") for bar in bars}
        assert len(inks) == len(bars)
        titles = [lane.text for lane in page.find_elements(By.CSS_SELECTOR, "#device-view .lane")]
        assert any("sends only" in title for title in titles) == bool(slots["sends"].any())
        assert f"sends in {100 * sends.mean():.0f} %" in by_id(page, "device-facts").text
    assert "sending" in by_id(page, "results-table").text
    assert not complaints(page)


def test_charts_have_the_data(opened: Any, finished_runs: list[Path]) -> None:
    curves = opened.find_elements(By.CSS_SELECTOR, "#charts .chart:first-child path.curve")
    assert [curve.get_attribute("d").count(" ") for curve in curves] == [3, 3]  # two schemes, evaluated three times
    slots = opened.find_elements(By.CSS_SELECTOR, "#charts .chart:nth-child(2) path.curve")
    assert [curve.get_attribute("d").count(" ") for curve in slots] == [12, 12]
    picture = opened.find_element(By.CSS_SELECTOR, "#charts svg")
    opened.execute_script("arguments[0].focus()", picture)
    press(opened, Keys.ARROW_LEFT)  # the last value
    means = [hm.Run.load(folder).final["accuracy_mean"] for folder in finished_runs]
    tip = by_id(opened, "tip").text
    assert "slot 12" in tip
    assert f"{100 * np.mean(means[:2]):.4g}" in tip
    assert f"{100 * means[2]:.4g}" in tip


def test_schemes_toggle_and_zoom_resets(opened: Any) -> None:
    def count() -> int:
        return len(opened.find_elements(By.CSS_SELECTOR, "#charts .chart:first-child path.curve"))

    button = opened.find_element(By.CSS_SELECTOR, "#legend button")
    opened.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", button)
    button.click()
    assert (count(), button.get_attribute("aria-pressed")) == (1, "false")
    button.click()
    assert count() == 2
    picture = opened.find_element(By.CSS_SELECTOR, "#charts svg")
    assert by_id(opened, "reset-zoom").get_attribute("disabled")
    ActionChains(opened).move_to_element(picture).click_and_hold().move_by_offset(120, 0).release().perform()
    assert not by_id(opened, "reset-zoom").get_attribute("disabled")
    click(opened, "reset-zoom")
    opened.execute_script("arguments[0].focus()", picture)
    press(opened, "+")
    assert not by_id(opened, "reset-zoom").get_attribute("disabled")
    press(opened, Keys.ESCAPE)
    assert by_id(opened, "reset-zoom").get_attribute("disabled")
    assert complaints(opened) == []


def test_intervals_and_the_reference_of_differences_can_be_chosen(opened: Any) -> None:
    def bands() -> int:
        return len(opened.find_elements(By.CSS_SELECTOR, "#charts .chart:first-child path.band"))

    assert (bands(), by_id(opened, "bands").text) == (2, "Hide intervals")
    click(opened, "bands")
    assert (bands(), by_id(opened, "bands").text) == (0, "Show intervals")
    rows = "#differences-table tbody tr"
    (row,) = opened.find_elements(By.CSS_SELECTOR, rows)
    assert (Select(by_id(opened, "reference")).first_selected_option.text, row.text[:8]) == (
        "uncoordinated",
        "receiver",
    )
    cost = opened.execute_script("return page.differences[1][0].cost.mean")
    assert f"{cost:+.3f}".replace("-", "−") in row.text
    Select(by_id(opened, "reference")).select_by_visible_text("receiver")
    (row,) = opened.find_elements(By.CSS_SELECTOR, rows)
    assert row.text.startswith("uncoordinated")
    assert complaints(opened) == []


def test_zoom_closer_than_the_evaluations(opened: Any) -> None:
    def zoomed(low: float, high: float) -> tuple[list[float], list[str]]:
        opened.execute_script(f"zoomTo({low}, {high}); charts[0].readOut({low}, 9, 9)")
        texts = opened.find_elements(By.CSS_SELECTOR, "#charts .chart:first-child svg text")
        return opened.execute_script("return charts[0].range"), [text.text for text in texts]

    (low, high), texts = zoomed(5, 7)  # of evaluations after slots 4, 8 and 12
    before, after = opened.execute_script("return charts[0].series[1].y.slice(0, 2)")
    assert low < before + (after - before) / 4 < high
    assert "No value in these slots." not in texts
    assert not by_id(opened, "tip").is_displayed()  # a line passes here, but nothing was measured
    _, texts = zoomed(1, 3)
    assert texts[-1] == "No value in these slots."
    assert [text for text in texts if text.replace(".", "").isdigit() and not 1 <= float(text) <= 3] == []
    assert complaints(opened) == []


def test_a_click_shows_a_device(opened: Any) -> None:
    place = opened.execute_script("return player.scenes[0].places[3]")
    canvas = opened.find_element(By.CSS_SELECTOR, ".scene")
    opened.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", canvas)
    box = canvas.size
    offset = (round(place[0] - box["width"] / 2), round(place[1] - box["height"] / 2))
    ActionChains(opened).move_to_element_with_offset(canvas, *offset).click().perform()
    assert Select(by_id(opened, "device-number")).first_selected_option.text == "3"
    assert "trains in" in by_id(opened, "device-facts").text
    assert len(opened.find_elements(By.CSS_SELECTOR, "#device-view rect")) == 10  # classes


def test_dark_and_light(opened: Any) -> None:
    def ground() -> str:
        return str(opened.execute_script("return getComputedStyle(document.body).backgroundColor"))

    light = ground()
    click(opened, "theme")
    assert ground() != light
    assert opened.execute_script("return document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out_sideways(opened: Any, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened.refresh()
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    assert len(opened.find_elements(By.CSS_SELECTOR, ".player")) == (2 if width > 1000 else 1)
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_long_names_of_schemes_do_not_stick_out(browser: Any, finished_runs: list[Path], tmp_path: Path) -> None:
    data = page_data(finished_runs)
    data["schemes"][0]["label"] = "receiver on ring10 (slots=300, learning.dataset=fashion_mnist) (unfinished)"
    for width in (360, 1280):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        opened_page(browser, render(data), tmp_path)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    cut = "const box = document.getElementById('results-table'); return box.scrollWidth - box.clientWidth"
    assert browser.execute_script(cut) <= 0  # on a desk the headline table is seen whole
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_close_pair_does_not_make_all_devices_tiny(browser: Any, own_run: Path, tmp_path: Path) -> None:
    opened_page(browser, report_page([own_run]), tmp_path)
    alike = browser.execute_script("return player.scenes[0].radius")
    script = (
        "const scene = player.scenes[0]; const [x, y] = scene.places[0]; scene.places[1] = [x + 12, y];"
        "const apart = scene.spacing(); return Math.min(Math.max(0.26 * apart, 4), 19)"
    )
    radius = browser.execute_script(script)
    assert 0.26 * 12 < radius < alike
    assert 2 * radius < 12  # the two do not overlap


def test_calm_readers_get_whole_slots(opened: Any) -> None:
    calm = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", calm)
    assert opened.execute_script("player.seek(2.25); return player.phase") == 0.6
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_half_finished_runs_say_what_is_missing(browser: Any, own_run: Path, tmp_path: Path) -> None:
    (own_run / "manifest.json").unlink()
    (own_run / "plan.json").unlink()
    opened_page(browser, report_page([own_run]), tmp_path)
    assert "The training is not finished" in by_id(browser, "missing").text
    assert "No run has the facts of its plan." in by_id(browser, "overhead-table").text
    assert complaints(browser) == []


def test_a_run_without_a_trace_has_no_player(browser: Any, own_run: Path, tmp_path: Path) -> None:
    for name in ("trace.json", "trace.npz"):
        (own_run / name).unlink()
    opened_page(browser, report_page([own_run]), tmp_path)
    assert "nothing to play" in by_id(browser, "players").text
    assert not by_id(browser, "transport").is_displayed()
    press(browser, Keys.SPACE, Keys.ARROW_RIGHT)
    assert complaints(browser) == []


def test_200_slots_of_100_devices(browser: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = hm.Scenario.load("grid25").override({"network.devices": 100, "slots": 200})
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), 1, 0)
    hm.Store(tmp_path / "run", single=True).put_trace(hm.Job(scenario, "uncoordinated"), trace)
    page = report_page([tmp_path / "run"])
    opened_page(browser, page, tmp_path)
    times = browser.execute_async_script(
        """
        const done = arguments[0], frames = [], draws = [];
        const draw = player.scenes[0].draw.bind(player.scenes[0]);
        player.scenes[0].draw = () => {
          const start = performance.now();
          draw();
          draws.push(performance.now() - start);
        };
        player.speed = 20;
        player.play();
        const begin = performance.now();
        const next = (now) => {
          frames.push(now);
          if (now - begin < 1000) requestAnimationFrame(next); else done([frames, draws]);
        };
        requestAnimationFrame(next);
        """
    )
    intervals, draws = np.diff(times[0]), np.array(times[1])
    with capsys.disabled():
        print(
            f"\n200 slots × 100 devices, {len(page) / 1e3:.0f} kB: a frame every {np.median(intervals):.1f} ms "
            f"(95 %: {np.quantile(intervals, 0.95):.1f} ms), drawing takes {np.median(draws):.1f} ms"
        )
    assert slot(browser) > 1
    assert complaints(browser) == []
