"""Bits of an update, counted by hand."""

import subprocess
import sys

import pytest

from heliomesh.scenario.on_air import BLOCK, num_sent, update_bits


@pytest.mark.parametrize(
    ("on_air", "parameters", "share", "bits"),
    [
        ("float32", 1000, 0.1, 32_000),
        ("float16", 1000, 0.1, 16_000),
        ("int8", BLOCK, 0.1, 8 * 256 + 32),
        ("int8", BLOCK + 1, 0.1, 8 * 257 + 64),  # a second scale for one parameter
        ("top-k", 1000, 0.1, 32 * 100 + 1000),  # a bit for each parameter: less than 100 indices of ten bits and one
        ("top-k", 1024, 0.01, 32 * 10 + 10 * 10),  # ten indices of ten bits
        ("top-k", 1, 0.5, 32),  # where there is one parameter nobody asks which
        ("top-k", 8, 1.0, 32 * 8 + 8),
    ],
)
def test_bits_by_hand(on_air, parameters, share, bits):
    assert update_bits(parameters, on_air, share) == bits


def test_float32_is_the_default_and_the_share_is_of_top_k_only():
    assert update_bits(4810) == 32 * 4810
    assert update_bits(4810, "int8", 0.1) == update_bits(4810, "int8", 0.9)


def test_at_least_one_entry_is_sent_and_at_most_all():
    assert [num_sent(10, share) for share in (1e-9, 0.1, 0.26, 1.0)] == [1, 1, 3, 10]


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="num_parameters: expected at least 1, actual value 0"):
        update_bits(0)


def test_counting_needs_no_torch():
    counting = "from heliomesh.scenario.on_air import update_bits; update_bits(9)"
    code = f"import sys; {counting}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
