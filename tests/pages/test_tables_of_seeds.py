"""Tables of few seeds claim nothing."""

import numpy as np

from heliomesh.pages.intervals import seeds_text, seeds_title


def test_three_seeds_have_a_mean_and_no_interval() -> None:
    assert seeds_text(np.array([0.1, 0.2, 0.3]), "+.2f", 100) == "+20.00"
    assert seeds_title("accuracy", 3) == "accuracy, means"


def test_four_seeds_have_an_interval() -> None:
    assert seeds_text(np.array([1.0, 1.0, 1.0, 1.0]), ".1f") == "1.0 ± 0.0"
    assert seeds_title("accuracy", 4) == "accuracy, 95 % intervals"
