"""Bits and operations of the shipped models, by hand."""

import pytest

from heliomesh.scenario.schema import Learning
from heliomesh.tasks.footprint import sample_flop, update_bits

CNN_PRODUCTS = 28 * 28 * 32 * 25, 14 * 14 * 64 * 32 * 25, 3136 * 512, 512 * 10


@pytest.mark.parametrize(
    ("dataset", "parameters"), [("digits", 4_810), ("fashion_mnist", 1_663_370), ("cifar10", 11_173_962)]
)
def test_an_update_has_32_bits_per_parameter(dataset, parameters):
    assert update_bits(Learning(dataset=dataset)) == 32 * parameters


def test_training_is_three_passes_but_for_the_gradient_of_the_inputs():
    assert sample_flop(Learning(dataset="fashion_mnist")) == 2 * (3 * sum(CNN_PRODUCTS) - CNN_PRODUCTS[0])


def test_given_numbers_count():
    given = Learning(dataset="nowhere", update_bits=7, sample_flop=11.0)
    assert (update_bits(given), sample_flop(given)) == (7, 11.0)
