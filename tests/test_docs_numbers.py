"""Numbers of the pages are those of `results/`, and nobody types them."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("page_numbers", ROOT / "docs" / "site" / "page_numbers.py")
page_numbers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(page_numbers)

MADE = re.compile(r"<!--(?:=|table:|printed:).*?<!--/-->", re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
TAKEN_FROM_RESULTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("learning", "reproduction", "gap_ledger", "deviations")),
)


@pytest.mark.parametrize("page", page_numbers.PAGES, ids=lambda page: page.name)
def test_a_page_has_the_numbers_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert text == page_numbers.written(text), "run `make numbers`"
    assert text.count(page_numbers.END) == len(MADE.findall(text))


@pytest.mark.parametrize("page", TAKEN_FROM_RESULTS)
def test_no_interval_is_typed_by_hand(page):
    text = FENCE.sub("", MADE.sub("", (ROOT / page).read_text(encoding="utf-8")))
    assert re.findall(r".*± ?\d.*", text) == []


def test_a_cell_is_copied_with_the_sign_for_minus():
    query = "accuracy_panel ; Dir(0.8), φ = 1: centralized against proposal ; over the run"
    (cell,) = [cells["over the run"] for _, cells in page_numbers.rows_like(*query.split(" ; ")[:2])]
    assert page_numbers.number(query) == cell.replace("-", "−", 1)
    assert page_numbers.number("bench/bounds-1 ; bounds / ring10 ; per_slot ; .3f") == "5.387"


@pytest.mark.parametrize(
    ("cells", "form", "expected"),
    [
        (["**-0.13 ± 0.02**"], "", "**−0.13 ± 0.02**"),
        (["**-0.13 ± 0.02**"], "plain", "−0.13 ± 0.02"),
        (["**-0.13 ± 0.02**"], "minus", "**+0.13 ± 0.02**"),
        (["+0.13 ± 0.02"], "minus plain", "−0.13 ± 0.02"),
        (["-0.13 ± 0.02"], "+.1f", "−0.1"),
        (["1,234 ± 5", "-2", "**+3.5 ± 1**"], "span .0f", "−2 to 1234"),
        (["**+3.5 ± 1**", "+1 ± 1", "**-2 ± 1**"], "bold", "2"),
        (["−0.6", "+0.4"], "span +.1f", "−0.6 to +0.4"),
        (["7", "7"], "", "7"),
    ],
)
def test_forms(cells, form, expected):
    assert page_numbers.shown(cells, form) == expected


@pytest.mark.parametrize(
    "query",
    [
        "accuracy_panel ; nobody ; over the run",
        "accuracy_panel ; * / centralized ; accuracy %",  # several
        "accuracy_panel ; * / centralized ; wealth",
        "no_such_file ; a ; b",
        "printed/gap_ledger ; receiver",  # no column
    ],
)
def test_what_results_do_not_have_is_refused(query):
    with pytest.raises((LookupError, ValueError)):
        page_numbers.number(query)


@pytest.mark.parametrize("start", ["", "  ", "- "])
def test_a_comment_at_the_beginning_of_a_line_is_refused(start):
    with pytest.raises(LookupError, match="begins"):
        page_numbers.written(f"{start}<!--= accuracy_panel ; a ; b -->1<!--/-->")
