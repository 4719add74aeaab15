"""The example's learner is a planner like the others."""

import pytest

pytest.importorskip("pettingzoo")

import heliomesh as hm
import heliomesh.planners


@pytest.fixture
def learner(monkeypatch, example):
    """The example, with the catalog's path restored afterwards."""
    monkeypatch.setattr(heliomesh.planners, "__path__", list(heliomesh.planners.__path__))
    return example("independent_learner")


@pytest.mark.slow
def test_it_stands_in_compare(learner, capsys, monkeypatch):
    monkeypatch.setattr(learner, "PLANNERS", ["independent_learner", "uncoordinated"])
    result = learner.main("tiny", episodes=4)
    assert [row.planner for row in result.rows] == ["independent_learner", "uncoordinated"]
    assert "independent_learner" in hm.planner_names()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("independent_learner")
    problem = hm.build(hm.Scenario.load("tiny"))
    plan = hm.plan(problem, "independent_learner", bound=False)
    assert hm.exact_cost(problem, plan) < hm.exact_cost(problem, hm.plan(problem, "uncoordinated"))
    assert plan.policy.visible(3) == {heliomesh.model.factor.energy(3)}


def test_the_catalog_forgets_it():
    assert "independent_learner" not in hm.planner_names()
