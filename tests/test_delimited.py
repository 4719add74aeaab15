"""Tables of values: every separator and decimal sign, and the sentence where a comma could mean either."""

import pytest

from heliomesh.common.delimited import TableError, table_rows

ROWS = {1: ["name", "x", "y"], 2: ["roof", "1.5", "-2"], 4: ["gate", "3", "4e-1"]}


@pytest.mark.parametrize(
    "text",
    [
        "name,x,y\nroof,1.5,-2\n\ngate,3,4e-1\n",
        "name;x;y\nroof;1.5;-2\n\ngate;3;4e-1\n",
        "name;x;y\nroof;1,5;-2\n\ngate;3;4e-1\n",
        "name\tx\ty\r\nroof\t1,5\t-2\r\n\r\ngate\t3\t4e-1\r\n",
        "name;x;y;;\nroof;1,5;-2;;\n;;;;\ngate;3;4e-1;;",
    ],
    ids=["commas", "semicolons", "decimal commas", "tabs", "empty cells at the end"],
)
def test_every_spreadsheet_writes_the_same_table(text: str) -> None:
    assert table_rows(text) == ROWS


def test_texts_keep_their_commas() -> None:
    assert table_rows('name;x\n"roof, south";1,5\n')[2] == ["roof, south", "1.5"]
    assert table_rows('name,x\n"1,234",5\n')[2] == ["1,234", "5"]  # not a number: it may be 1234


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "x,y\n1,5,2\n",
            "expected 2 values in line 2, as in the first, actual number of values 3; write decimal points",
        ),
        ("x;y\n1;2;3\n", "expected 2 values in line 2, as in the first, actual number of values 3"),
        ("x;y\n1.5;2\n3;4,5\n", "expected one decimal sign in all lines, actual '1.5' in line 2 and '4,5' in line 3"),
        ('x,y\n"1,2\n', "expected a table of comma-separated values, actual"),
    ],
)
def test_what_a_comma_means_is_never_guessed(text: str, words: str) -> None:
    with pytest.raises(TableError) as caught:
        table_rows(text)
    assert words in str(caught.value)


def test_nothing_is_an_empty_table() -> None:
    assert table_rows(" \n\n") == {}
