"""What readers do with the page: read the answer, sort, save, share a view. In headless Chromium."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from heliomesh.pages.page import render, report_page
from heliomesh.pages.page_data import page_data
from tests.pages.chromium import (
    NEEDS_CHROMIUM,
    By,
    Keys,
    Select,
    WebDriverWait,
    by_id,
    click,
    complaints,
    opened_page,
    press,
)

pytestmark = NEEDS_CHROMIUM
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def compared_page(compared_runs: list[Path]) -> str:
    return report_page(compared_runs)


@pytest.fixture
def compared(browser: Any, compared_page: str, tmp_path: Path) -> Any:
    return opened_page(browser, compared_page, tmp_path)


def _texts(page: Any, selector: str) -> list[str]:
    """In one call, since pictures are drawn anew when their width changes."""
    script = "return Array.from(document.querySelectorAll(arguments[0]), (element) => element.textContent)"
    return list(page.execute_script(script, selector))


def _dots(page: Any) -> list[tuple[int, float]]:
    """Schemes of the plot from top to bottom, and where their dots are [px]."""
    script = "return Array.from(document.querySelectorAll('#answer-plot circle'), (dot) => "
    found = page.execute_script(script + "[Number(dot.dataset.scheme), Number(dot.getAttribute('cx'))])")
    return [(scheme, place) for scheme, place in found]


def _column(page: Any, table: str, place: int) -> list[str]:
    """First lines of a column's cells."""
    cells = page.find_elements(By.CSS_SELECTOR, f"#{table} tbody tr > :nth-child({place})")
    return [cell.get_attribute("textContent").split("±")[0].strip() for cell in cells]


# The answer


def test_the_answer_comes_first_and_its_plot_is_sorted(compared: Any, compared_runs: list[Path]) -> None:
    data = page_data(compared_runs)
    assert compared.find_element(By.CSS_SELECTOR, "main section:not([hidden])").get_attribute("id") == "answer"
    assert compared.find_element(By.CLASS_NAME, "lead").text == data["answer"]["sentence"].replace(
        "\N{NO-BREAK SPACE}", " "
    )
    drawn = [data["schemes"][scheme]["label"] for scheme, _ in _dots(compared)]
    means = {scheme["label"]: scheme["headline"]["cost"]["mean"] for scheme in data["schemes"]}
    assert drawn == sorted(means, key=lambda label: means[label])
    places = [place for _, place in _dots(compared)]
    assert places == sorted(places)
    Select(by_id(compared, "measure")).select_by_visible_text("accuracy at the end")
    places = [place for _, place in _dots(compared)]
    assert places == sorted(places, reverse=True)
    told = compared.find_elements(By.CSS_SELECTOR, "#answer-plot circle[data-told]")
    assert len(told) == 1  # the reference; two seeds prove nothing
    assert complaints(compared) == []


def test_the_reference_is_where_zero_is(compared: Any) -> None:
    for name in ("receiver", "uncoordinated"):
        Select(by_id(compared, "reference")).select_by_visible_text(name)
        assert _texts(compared, "#answer-plot text").count("reference") == 1
        row = compared.execute_script("return answerPlot.rows.find(({ scheme }) => scheme === answerPlot.reference)")
        assert (row["mean"], compared.execute_script("return page.schemes[answerPlot.reference].label")) == (0, name)
    assert len(compared.find_elements(By.CSS_SELECTOR, "#differences-table tbody tr")) == 3


def test_the_player_starts_on_the_best_against_the_baseline(compared: Any, compared_runs: list[Path]) -> None:
    answer = page_data(compared_runs)["answer"]
    shown = compared.execute_script("return player.scenes.map(({ index }) => page.runs[index])")
    assert [run["scheme"] for run in shown] == [answer["best"], answer["reference"]]
    assert shown[0]["seeds"] == shown[1]["seeds"]
    assert compared.execute_script("return page.runs[selected.run].scheme") == answer["best"]


# Curves


def test_curves_are_differences_that_pair_seeds(compared: Any, compared_runs: list[Path]) -> None:
    data = page_data(compared_runs)
    reference = data["answer"]["reference"]
    assert Select(by_id(compared, "curve-reference")).first_selected_option.text == "against uncoordinated"
    series = compared.execute_script("return charts[0].series")
    for index, row in enumerate(data["differences"][reference]):
        if row is None:
            assert series[index]["x"] == []
        else:
            assert series[index]["x"] == [4, 8, 12]
            assert series[index]["y"][-1] == pytest.approx(100 * row["accuracy"]["mean"], abs=1e-4)
            half = (series[index]["high"][-1] - series[index]["low"][-1]) / 2
            assert half == pytest.approx(100 * row["accuracy"]["half"], abs=1e-3)
    Select(by_id(compared, "curve-reference")).select_by_visible_text("as measured")
    last = compared.execute_script("return charts[0].series.map(({ y }) => y.at(-1))")
    means = [100 * scheme["headline"]["accuracy_mean"]["mean"] for scheme in data["schemes"]]
    assert last == pytest.approx(means, abs=1e-4)
    assert complaints(compared) == []


# Tables


@pytest.mark.parametrize("table", ["results-table", "ledger", "overhead-table", "provenance"])
def test_a_scheme_has_one_line(compared: Any, table: str) -> None:
    assert len(compared.find_elements(By.CSS_SELECTOR, f"#{table} tbody tr")) == 4


def test_tables_sort_by_click_and_by_key(compared: Any) -> None:
    first = _column(compared, "results-table", 1)
    button = compared.find_element(By.CSS_SELECTOR, "#results-table th:nth-child(5) button")
    assert button.text.startswith("update loss")
    compared.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", button)
    button.click()
    costs = [float(text) for text in _column(compared, "results-table", 5)]
    assert costs == sorted(costs)
    head = compared.find_element(By.CSS_SELECTOR, "#results-table th:nth-child(5)")
    assert head.get_attribute("aria-sort") == "ascending"
    button.send_keys(Keys.ENTER)
    assert [float(text) for text in _column(compared, "results-table", 5)] == costs[::-1]
    button.send_keys(Keys.SPACE)
    assert _column(compared, "results-table", 1) == first
    assert head.get_attribute("aria-sort") is None
    assert compared.execute_script("return player.playing") is False  # the space was the button's


def test_what_is_unknown_is_last_in_both_directions(compared: Any) -> None:
    script = "return ['ascending', 'descending'].map((way) => sorted([2, null, 3, 1], (value) => value, way))"
    assert compared.execute_script(script) == [[3, 0, 2, 1], [2, 0, 3, 1]]
    script = "return sorted(['run-10', 'run-9', 'a'], (value) => value, 'ascending')"
    assert compared.execute_script(script) == [2, 1, 0]


def test_a_table_that_goes_on_says_so(compared: Any) -> None:
    def said() -> list[bool]:
        hints = [by_id(compared, table).get_property("tools") for table in ("results-table", "provenance")]
        return ["goes-on" in hint.get_attribute("class") for hint in hints]

    assert said()[0] is False  # on a desk it is seen whole
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    compared.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        WebDriverWait(compared, 5).until(lambda _: said() == [True, True])
        table = by_id(compared, "results-table")
        assert "inset" in table.value_of_css_property("box-shadow")
        compared.execute_script("arguments[0].scrollLeft = 1e4", table)
        WebDriverWait(compared, 5).until(lambda _: "goes-on" not in table.get_attribute("class"))
    finally:
        compared.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


# Saving


def _saved(page: Any, folder: Path, button: Any) -> Path:
    page.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    page.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", button)
    before = set(folder.iterdir())
    button.click()

    def new(_: Any) -> Path | None:
        found = [file for file in set(folder.iterdir()) - before if file.suffix in (".csv", ".svg")]
        return found[0] if found else None

    return WebDriverWait(page, 10).until(new)


def test_a_table_is_saved_with_all_its_digits(compared: Any, compared_runs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    button = compared.find_element(By.CSS_SELECTOR, "#results-table + .tools button")
    file = _saved(compared, folder, button)
    assert file.name == "tiny-4-planners-results.csv"
    heads, *lines = file.read_text(encoding="utf-8").splitlines()
    assert heads.startswith('scheme,"accuracy (mean device, %)","accuracy (mean device, %), 95 % half-width",')
    assert 'update loss (per slot),"update loss (per slot), 95 % half-width",' in heads
    data = page_data(compared_runs)
    for line, scheme in zip(lines, data["schemes"], strict=True):
        assert line.startswith(scheme["label"] + ",")
        assert str(scheme["headline"]["cost"]["mean"]) in line.split(",")
        assert str(scheme["headline"]["cost"]["half"]) in line.split(",")
    assert complaints(compared) == []


def test_fields_of_csv_are_texts_and_no_formulas(compared: Any) -> None:
    script = "return ['a,b', 'say \"x\"', '=1+1', '-x', null, -2.5, 'plain'].map(csvField)"
    expected = ['"a,b"', '"say ""x"""', "'=1+1", "'-x", "", "-2.5", "plain"]
    assert compared.execute_script(script) == expected


@pytest.mark.parametrize("place", ["#answer-tools", "#charts .chart:first-child"])
def test_a_picture_is_saved_as_it_looks(compared: Any, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    file = _saved(compared, folder, compared.find_element(By.CSS_SELECTOR, f"{place} button.save"))
    text = file.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)  # noqa: S314
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title").text.startswith("tiny: 4 planners")  # type: ignore[union-attr]
    assert not {"var(", "class=", "<script"} & {word for word in ("var(", "class=", "<script") if word in text}
    assert all(float(root.attrib[name]) > 50 for name in ("width", "height"))
    words = "".join(text.text or "" for text in root.iter(f"{SVG}text"))
    assert all(label in words for label in ("prices alone", "receiver"))  # who is who is said in the file too
    assert complaints(compared) == []


# Links to a view


def _address(page: Any, word: str) -> str:
    WebDriverWait(page, 5).until(lambda _: word in page.current_url)
    return str(page.current_url)


def test_a_link_brings_back_the_view(compared: Any) -> None:
    assert "&" not in compared.current_url  # at first there is nothing to say
    Select(by_id(compared, "reference")).select_by_visible_text("receiver")
    Select(by_id(compared, "measure")).select_by_value("accuracy")
    Select(by_id(compared, "curve-reference")).select_by_visible_text("as measured")
    Select(by_id(compared, "device-number")).select_by_value("3")
    compared.execute_script("toggleScheme(0, byId('legend').children[0]); zoomTo(2, 9); player.seek(4)")
    compared.execute_script("showBands(false); player.scenes[0].setRun(5)")
    click(compared, "theme")
    address = _address(compared, "theme=")
    said = compared.execute_script("return links.text")
    assert address.endswith(said)
    compared.get("about:blank")
    compared.get(address)
    assert compared.execute_script("return links.text") == said
    assert Select(by_id(compared, "reference")).first_selected_option.text == "receiver"
    assert Select(by_id(compared, "device-number")).first_selected_option.text == "3"
    assert by_id(compared, "slot").text == "slot 5 of 12"
    state = "return [view.low, view.high, view.bands, view.against, [...view.hidden], player.scenes[0].index]"
    assert compared.execute_script(state) == [2, 9, False, None, [0], 5]
    assert compared.execute_script("return document.documentElement.dataset.theme") in ("dark", "light")
    assert complaints(compared) == []


def test_the_address_keeps_the_view_when_a_section_is_chosen(compared: Any) -> None:
    press(compared, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    _address(compared, "slot=3")
    compared.find_element(By.CSS_SELECTOR, 'nav a[href="#energy"]').click()
    assert _address(compared, "#energy&slot=3")
    assert by_id(compared, "slot").text == "slot 3 of 12"


@pytest.mark.parametrize(
    "hash_",
    [
        "#nowhere",
        "#curves&slot=99&device=77",
        "#&against=nobody&measure=luck&curves=nobody&without=nobody",
        "#results&slots=9-2&players=a|b&run=x&theme=pink",
        "#%E0%A4%A&slot=%E0%A4%A",
        "#results]&__proto__=1&constructor=2",
    ],
)
def test_a_wrong_link_shows_the_page(compared: Any, hash_: str) -> None:
    address = compared.current_url.split("#")[0] + hash_
    compared.get("about:blank")
    compared.get(address)
    assert compared.find_elements(By.CSS_SELECTOR, "#results-table tbody tr")
    assert compared.find_elements(By.CSS_SELECTOR, "#answer-plot circle")
    assert compared.execute_script("return player.frame < player.frames")
    assert complaints(compared) == []


# Names of others


def test_hostile_labels_do_nothing_in_plot_table_and_link(
    browser: Any, compared_runs: list[Path], tmp_path: Path
) -> None:
    data = page_data(compared_runs)
    name = "</text><script>window.broken=1</script>&against=\"'|=x"
    data["schemes"][0]["label"] = data["answer"]["sentence"] = name
    page = opened_page(browser, render(data), tmp_path)
    assert name[:4] in "".join(_texts(page, "#answer-plot text"))
    assert page.find_element(By.CLASS_NAME, "lead").text == name
    Select(by_id(page, "reference")).select_by_value("2")
    Select(by_id(page, "reference")).select_by_value("0")
    page.execute_script("toggleScheme(0, byId('legend').children[0]); links.write()")
    address = page.current_url
    page.get("about:blank")
    page.get(address)
    assert json.loads(page.execute_script("return JSON.stringify([window.broken ?? null])")) == [None]
    assert complaints(page) == []
