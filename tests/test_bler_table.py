"""The example that simulates a table for ``link.error = "table"``; it needs the extra `sionna`."""

import importlib.util
from pathlib import Path

import pytest

from heliomesh.physics.link import read_table

EXAMPLE = Path(__file__).parents[1] / "examples" / "links" / "bler_table.py"


@pytest.fixture(scope="module")
def example():
    pytest.importorskip("sionna.phy")
    spec = importlib.util.spec_from_file_location("bler_table", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blocks_are_lost_in_noise_and_arrive_without(example):
    """Shannon: half a bit per real dimension needs 0 dB per symbol; the code needs little more."""
    link = example.CodedLink(32, 64)
    assert link.wrong_blocks(-8.0, 20) == 20
    assert link.wrong_blocks(8.0, 20) == 0


def test_a_simulated_table_is_read_as_it_was_written(example, tmp_path):
    rows = [(-1.0, 1.0), (0.0, 0.5), (1.0, 0.01)]
    path = tmp_path / "link.csv"
    path.write_text(example.table_text(rows, 2), encoding="utf-8")
    table = read_table(str(path))
    assert table.sinr_db.tolist() == [-1.0, 0.0, 1.0]
    assert table.error.tolist() == pytest.approx([1.0, 0.75, 1 - 0.99**2])


def test_rates_fall_until_the_least(example):
    class Fake:
        def wrong_blocks(self, sinr_db, num_blocks):
            return {-1.0: 90, -0.5: 95, 0.0: 40, 0.5: 0}[sinr_db]

    rows = list(example.block_error_rates(Fake(), -1.0, 0.5, 100, 1e-3))
    assert rows == [(-1.0, 0.9), (-0.5, 0.9), (0.0, 0.4), (0.5, 0.0)]
