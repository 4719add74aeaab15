"""Text tables: commas, semicolons or tabs between cells, and decimal commas where cells are not separated by them.

A spreadsheet writes ``12.5,7`` or, in half of Europe, ``12,5;7``. Both are read. A table in which a comma could mean
either, or in which both decimal signs occur, is refused.
"""

import csv
import io
import re

_NUMBER = re.compile(r"\s*[+-]?\d+(?:([.,])\d+)?(?:[eE][+-]?\d+)?\s*")


class TableError(ValueError):
    """A text holds no table, or no places: what was expected in it and what was found, in one line."""


def table_rows(text: str) -> dict[int, list[str]]:
    """Cells of all lines that have any, by the line's number, with decimal points; raises TableError."""
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    separator = next((sign for sign in ";\t" if sign in first_line), ",")
    reader = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
    rows = {}
    try:
        for cells in reader:
            while cells and not cells[-1].strip():  # spreadsheets leave empty ones at the end
                cells.pop()
            if cells:
                rows[reader.line_num] = cells
    except csv.Error as error:
        raise TableError(f"expected a table of comma-separated values, actual: {error}") from None
    _check_widths(rows, separator)
    return rows if separator == "," else _with_points(rows)


def _check_widths(rows: dict[int, list[str]], separator: str) -> None:
    """Refuse a line with more values than the first: a decimal comma has split one."""
    width = len(next(iter(rows.values()), []))
    for line, cells in rows.items():
        if len(cells) > width:
            remedy = "; write decimal points, or semicolons between values" if separator == "," else ""
            expected = f"expected {width} values in line {line}, as in the first"
            raise TableError(f"{expected}, actual number of values {len(cells)}{remedy}")


def _with_points(rows: dict[int, list[str]]) -> dict[int, list[str]]:
    """The same with decimal points; raises TableError where both signs occur, of which one may group thousands."""
    seen: dict[str, str] = {}
    for line, cells in rows.items():
        for cell in cells:
            found = _NUMBER.fullmatch(cell)
            if found and found[1]:
                seen.setdefault(found[1], f"{cell.strip()!r} in line {line}")
    if len(seen) > 1:
        raise TableError(f"expected one decimal sign in all lines, actual {' and '.join(seen.values())}")
    return {
        line: [cell.replace(",", ".") if _NUMBER.fullmatch(cell) else cell for cell in cells]
        for line, cells in rows.items()
    }
