"""What a scheme's text means."""

import pytest

import heliomesh as hm
from heliomesh.jobs.job import Job
from heliomesh.jobs.scheme import Scheme, scheme_of


@pytest.mark.parametrize(
    ("text", "planner", "options", "changes", "agree"),
    [
        ("receiver", "receiver", {}, {}, 0),
        ("receiver+agree=6", "receiver", {}, {}, 6),
        ("decentralized gamma=1e5", "decentralized", {"gamma": 1e5}, {}, 0),
        ("turns:power_watt=0.1,last_slots=20", "turns", {"power_watt": 0.1, "last_slots": 20}, {}, 0),
        ("turns:power_watt=0.1 last_slots=20", "turns", {"power_watt": 0.1, "last_slots": 20}, {}, 0),
        ("news+rule=model+actions=coupled", "news", {}, RULE := {
            "learning.aggregation": "model", "energy.actions": "coupled"}, 0),
        ("news+learning.aggregation=model+energy.actions=coupled", "news", {}, RULE, 0),
        ("mine.planner:plan", "mine.planner:plan", {}, {}, 0),
        ("mine.planner:plan:depth=2+agree=1", "mine.planner:plan", {"depth": 2}, {}, 1),
    ],
)  # fmt: skip
def test_texts(text, planner, options, changes, agree):
    assert scheme_of(text) == Scheme(planner, options, changes, agree, text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("receiver+agree=x", "agree: expected a number of slots, actual value 'x'"),
        ("receiver+agree=-1", "agree: expected a number of slots, actual value -1"),
        ("receiver+speed=3", "expected agree, rule, actions or a path of the scenario, actual value 'speed'"),
        ("receiver+agree", "expected path=value, actual value 'agree'"),
        ("turns power_watt", "expected path=value, actual value 'power_watt'"),
    ],
)
def test_mistakes_are_one_sentence(text, sentence):
    with pytest.raises(hm.ScenarioError, match=r"scheme|planner") as caught:
        scheme_of(text)
    assert sentence in str(caught.value)


def test_a_scheme_is_itself_and_a_function_is_one():
    scheme = Scheme("receiver", agree=2)
    assert scheme_of(scheme) is scheme
    assert scheme_of(hm.plan).planner is hm.plan


def test_its_job_differs_in_what_it_says_only():
    base = Job(hm.Scenario.load("ring10"), "uncoordinated", seed=3, episode=2)
    job = scheme_of("turns:last_slots=2+rule=model+agree=1").job(base)
    assert (job.planner, job.options, job.agree, job.seed, job.episode) == ("turns", {"last_slots": 2}, 1, 3, 2)
    assert job.scenario == base.scenario.override({"learning.aggregation": "model"})
