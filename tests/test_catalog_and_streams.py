"""Catalogs find variants by file name, and random streams are independent and reproducible."""

import inspect
import math
from pathlib import Path

import numpy as np
import pytest

from heliomesh.common import catalog
from heliomesh.common.streams import PURPOSES, stream
from heliomesh.planning import PLANNER_CATALOG
from heliomesh.scenario.schema import HARVEST_CATALOG
from heliomesh.scenario.section import Section

CATALOGS = [PLANNER_CATALOG, HARVEST_CATALOG]
PINNED = {
    "topology": 0.15279572543387399,
    "channel": 0.3719859171034833,
    "harvest": 0.8209625571760398,
    "link": 0.43457589242697137,
    "policy": 0.9546734475434902,
    "partition": 0.39915595092924294,
    "init": 0.17125964067767152,
    "minibatch": 0.004792410051212448,
    "control": 0.7325347351921015,
}
PAIR = 0.7337929294437175
VARIANTS = [(package, name) for package in CATALOGS for name in catalog.names(package)]


# catalogs


def test_known_variants():
    assert {"uncoordinated", "myopic", "centralized", "decentralized"} <= set(catalog.names(PLANNER_CATALOG))
    assert {"markov", "solar", "table", "trace"} <= set(catalog.names(HARVEST_CATALOG))


@pytest.mark.parametrize("package", CATALOGS)
def test_names_are_sorted_and_public(package):
    names = catalog.names(package)
    assert names == sorted(names)
    assert not any(name.startswith("_") for name in names)


@pytest.mark.parametrize(("package", "name"), VARIANTS)
def test_every_variant_is_its_file(package, name):
    module = catalog.find(package, name)
    assert module.__name__ == f"{package}.{name}"
    assert module.__doc__
    assert Path(module.__file__).exists()


@pytest.mark.parametrize("name", catalog.names(PLANNER_CATALOG))
def test_every_planner_offers_options_and_plan(name):
    module = catalog.find(PLANNER_CATALOG, name)
    assert issubclass(module.Options, Section)
    module.Options()  # every option has a default
    assert list(inspect.signature(module.plan).parameters) == ["context"]


@pytest.mark.parametrize("name", catalog.names(HARVEST_CATALOG))
def test_every_harvest_source_offers_settings_and_build(name):
    module = catalog.find(HARVEST_CATALOG, name)
    assert issubclass(module.Settings, Section)
    assert list(inspect.signature(module.build).parameters) == ["settings", "scenario"]


@pytest.mark.parametrize(
    ("package", "wrong", "hint"),
    [
        (PLANNER_CATALOG, "centralised", "; did you mean 'centralized'?"),
        (PLANNER_CATALOG, "Myopic", "; did you mean 'myopic'?"),
        (HARVEST_CATALOG, "tabel", "; did you mean 'table'?"),
        (HARVEST_CATALOG, "xyzzy", ""),
        (HARVEST_CATALOG, "", ""),
        (HARVEST_CATALOG, "../solar", "; did you mean 'solar'?"),
    ],
)
def test_unknown_name_lists_the_known_and_the_nearest(package, wrong, hint):
    with pytest.raises(catalog.UnknownVariantError) as caught:
        catalog.find(package, wrong)
    message = str(caught.value)
    assert message.startswith(f"expected one of {', '.join(catalog.names(package))}, actual value {wrong!r}")
    assert message.endswith(hint or repr(wrong))


def test_a_new_file_is_a_new_variant(tmp_path, monkeypatch):
    package = tmp_path / "sample_catalog"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("VALUE = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert catalog.names("sample_catalog") == ["one"]
    (package / "another.py").write_text("VALUE = 2\n", encoding="utf-8")
    assert catalog.names("sample_catalog") == ["another", "one"]
    assert catalog.find("sample_catalog", "one").VALUE == 1


# streams


def numbers(*key, count=2000):
    return stream(*key).random(count)


@pytest.mark.parametrize("purpose", PURPOSES)
def test_same_key_same_numbers(purpose):
    np.testing.assert_array_equal(numbers(3, purpose, 1, 2), numbers(3, purpose, 1, 2))


def test_different_keys_are_uncorrelated():
    keys = [(seed, purpose, *index) for seed in (0, 1) for purpose in PURPOSES for index in ((), (0,), (1,), (0, 1))]
    drawn = np.array([numbers(*key) for key in keys])
    assert len({row.tobytes() for row in drawn}) == len(keys)
    correlation = np.corrcoef(drawn) - np.eye(len(keys))
    assert np.abs(correlation).max() < 5.5 / math.sqrt(drawn.shape[1])


def test_neighbouring_episodes_are_uncorrelated():
    drawn = np.array([numbers(0, "channel", episode) for episode in range(64)])
    drawn = drawn - 0.5
    for lag in range(3):
        product = drawn[:-1, lag:] * drawn[1:, : drawn.shape[1] - lag]
        assert abs(product.mean()) < 5 / 12 / math.sqrt(product.size)


def test_who_draws_elsewhere_changes_nothing():
    expected = numbers(0, "harvest", 4)
    stream(0, "link", 4).random(1000)
    stream(0, "harvest", 3).random(1000)
    np.testing.assert_array_equal(numbers(0, "harvest", 4), expected)


def test_drawing_in_pieces_is_drawing_at_once():
    at_once, pieces = stream(1, "policy", 0).random((10, 3)), stream(1, "policy", 0)
    np.testing.assert_array_equal(np.concatenate([pieces.random((4, 3)), pieces.random((6, 3))]), at_once)


def test_no_global_generator_is_touched():
    before = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    stream(0, "channel", 0).random(100)
    after = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    assert before["pos"] == after["pos"]
    np.testing.assert_array_equal(before["key"], after["key"])


def test_numbers_are_pinned():
    """Published results rest on these; they change only with a new major version."""
    for purpose, value in PINNED.items():
        assert stream(0, purpose, 7).random() == value
    assert stream(5, "minibatch", 1, 2).random() == PAIR


def test_unknown_purpose_and_negative_keys():
    with pytest.raises(ValueError, match="not in"):
        stream(0, "weather")
    with pytest.raises(ValueError, match="non-negative"):
        stream(-1, "channel")
    with pytest.raises(ValueError, match="non-negative"):
        stream(0, "channel", -1)
