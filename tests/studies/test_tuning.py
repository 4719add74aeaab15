"""The search turns every knob once, on held-out samples and seeds of its own."""

from typing import Any

import pytest

import heliomesh as hm
from heliomesh.common.streams import VALIDATION_SEED
from heliomesh.jobs.job import Job
from heliomesh.jobs.scheme import Scheme, scheme_of
from heliomesh.jobs.store import Store
from heliomesh.studies import tuning
from heliomesh.studies.tuning import knobs, tune

SCENARIO = hm.Scenario.load("tiny").override(
    {"slots": 8, "learning.dataset": "synthetic", "energy.initial": "uniform", "energy.actions": "separate"}
)


def test_what_a_scheme_says_is_not_turned() -> None:
    powers = tuple(power for power in SCENARIO.energy.powers_watt if power)
    assert knobs(scheme_of("turns"), SCENARIO) == [("power_watt", powers), ("last_slots", (0, 6, 12, 20))]
    assert knobs(scheme_of("turns:last_slots=3"), SCENARIO) == [("power_watt", powers)]
    assert knobs(scheme_of("uncoordinated"), SCENARIO) == [("agree", (0, 6))]  # 12 slots are more than there are
    assert knobs(scheme_of("uncoordinated+agree=2"), SCENARIO) == []
    assert ("cost.unlikeness", (0.2, 0.7, 2.7)) in knobs(scheme_of("contributions"), SCENARIO)


def test_a_name_is_read_as_the_same_scheme() -> None:
    for scheme in (
        Scheme("", "turns", {"power_watt": 0.1, "last_slots": 6}),
        Scheme("", "decentralized", {"form": "literal", "gamma": 1e22}, {"learning.aggregation": "model"}, 6),
        Scheme("", "contributions", {}, {"cost.unlikeness": 2.7}),
        Scheme("", "prices", {"coordinate": False}),
    ):
        named = scheme.named()
        assert scheme_of(named.label) == named


def test_each_knob_is_turned_with_the_others_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    def scored(problem: hm.Problem, schemes: list[Scheme], *_: Any) -> dict[str, float]:
        asked.append([one.label for one in schemes])
        assert problem.scenario.learning.validation == 0.1
        return {one.label: worth(one) for one in schemes}

    def worth(scheme: Scheme) -> float:
        options = scheme.options
        return options.get("news_value", 1.0) - abs(options.get("energy_price", 1.8) - 1.0)

    asked: list[list[str]] = []
    monkeypatch.setattr(tuning, "_scored", scored)
    (found,) = tune(hm.build(SCENARIO), ["news:last_slots=5"])
    assert found.scheme.options == {"last_slots": 5, "news_value": 3.0, "energy_price": 1.0}
    assert [len(labels) for labels in asked] == [4, 3]  # as it is and three values; three more with the best of them
    assert set(found.tried) == {label for labels in asked for label in labels}
    assert found.tried[found.scheme.label] == max(found.tried.values())


def test_published_seeds_and_the_test_set_stay_untouched(tmp_path) -> None:
    store = Store(tmp_path)
    found = tune(hm.build(SCENARIO), ["uncoordinated", "turns:power_watt=2.0"], 2, store=store)
    assert [one.scheme.planner for one in found] == ["uncoordinated", "turns"]
    for one in found:
        jobs = [scheme_of(label).job(Job(SCENARIO, seed=0)) for label in one.tried]
        assert not any(store.has(job, "trace") for job in jobs)
        assert all(0.0 < accuracy < 1.0 for accuracy in one.tried.values())
    assert VALIDATION_SEED > 100_000
    again = tune(hm.build(SCENARIO), ["uncoordinated", "turns:power_watt=2.0"], 2, store=store)
    assert again == found
