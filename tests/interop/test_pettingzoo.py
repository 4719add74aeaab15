"""The environment passes PettingZoo's own tests and is the simulator to the last bit."""

import copy
import pickle
import sys
from importlib import import_module

import numpy as np
import pytest

pytest.importorskip("pettingzoo")

from pettingzoo.test import parallel_api_test, parallel_seed_test

import heliomesh as hm
from heliomesh.interop.pettingzoo import parallel_env
from tests.interop.conftest import WEATHER

SCENARIOS = {
    "tiny": {},
    "uneven": {"energy.initial": "uniform", "energy.compute_joule": 0.77, "link.half_duplex": True},
    "link, train only": {"channel.state": "link", "energy.train_only": True, "network.topology": "star"},
    "separate": {"energy.actions": "separate", "energy.compute_joule": 1.5},
    "losses, drain": {"energy.storage": "li-ion", "energy.sleep_watt": 0.3, "energy.compute_joule": 0.77},
}


def scenario_of(changes):
    return hm.Scenario.load("tiny").override(changes)


def actions_of(problem, trace, episode, slot):
    """Action indices that have a slot's powers and training."""
    actions = problem.actions
    same = (actions.power_watt.numpy() == trace.power_watt[episode, slot][:, None]) & (
        actions.trained.numpy() == trace.scheduled[episode, slot][:, None]
    )
    return {f"device_{device}": int(index) for device, index in enumerate(same.argmax(-1))}


FORMS = [{}, {"observations": "box"}, {"observations": "box", "agent_id": True, "clock": 3}]


@pytest.mark.parametrize("form", FORMS, ids=["dict", "box", "box, agent id"])
@pytest.mark.parametrize("reward", ["own", "nearby", "shared"])
@pytest.mark.parametrize("changes", SCENARIOS.values(), ids=SCENARIOS)
def test_pettingzoo_api(changes, reward, form, capsys):
    env = parallel_env(scenario_of(changes), hops=1, reward=reward, **form)
    parallel_api_test(env, num_cycles=30)
    assert "Passed" in capsys.readouterr().out


@pytest.mark.parametrize("form", FORMS, ids=["dict", "box", "box, agent id"])
def test_pettingzoo_seeds(form):
    parallel_seed_test(lambda: parallel_env("tiny", hops=2, **form), num_cycles=30)


@pytest.mark.parametrize("planner", ["uncoordinated", "prices", "skiptrain", "turns"])
@pytest.mark.parametrize("changes", SCENARIOS.values(), ids=SCENARIOS)
def test_a_plans_actions_give_the_simulated_costs_exactly(changes, planner):
    scenario = scenario_of(changes)
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, planner), episodes=20, seed=7)
    env = parallel_env(scenario)
    for episode in (0, 1, 19):
        env.reset(seed=7, options={"episode": episode})
        for slot in range(problem.slots):
            _, rewards, ended, _, infos = env.step(actions_of(problem, trace, episode, slot))
            assert [-r for r in rewards.values()] == trace.update_loss[episode, slot].tolist()
            battery = [info["battery_joule"] for info in infos.values()]
            assert battery == trace.battery_joule[episode, slot + 1].tolist()
            assert not any(info["infeasible"] for info in infos.values())
        assert all(ended.values())
        assert env.agents == []


def test_resets_go_through_the_episodes_of_a_seed():
    env = parallel_env("tiny", seed=3)
    first = [env.reset()[0]["device_0"]["observation"] for _ in range(18)]
    assert env.episode == 17
    again = parallel_env("tiny")
    for episode in (17, 0, 5):
        seen, _ = again.reset(seed=3, options={"episode": episode})
        np.testing.assert_array_equal(seen["device_0"]["observation"], first[episode])


def test_shared_reward_is_the_sum_of_own_rewards():
    own, shared = (parallel_env("tiny", reward=reward) for reward in ("own", "shared"))
    actions = dict.fromkeys(own.possible_agents, 1)
    own.reset(), shared.reset()
    for _ in range(12):
        one, all_of_them = own.step(actions)[1], shared.step(actions)[1]
        assert list(all_of_them.values()) == pytest.approx([sum(one.values())] * 5, abs=1e-12)


def test_nearby_reward_is_of_two_hops():
    changes = {"network.devices": 7}
    own, nearby = (parallel_env(scenario_of(changes), reward=reward) for reward in ("own", "nearby"))
    own.reset(), nearby.reset()
    for _ in range(5):
        losses = list(own.step(dict.fromkeys(own.agents, 1))[1].values())
        found = list(nearby.step(dict.fromkeys(nearby.agents, 1))[1].values())
        assert found == pytest.approx([sum(losses[(d + k) % 7] for k in range(-2, 3)) for d in range(7)])


def test_what_a_device_sees():
    """Device 1 of a line sees one hop: slot, three batteries and weathers, three channels, itself first."""
    changes = {"network.topology": "edges", "network.devices": 4, "network.edges": [[0, 1], [1, 2], [2, 3]]}
    env = parallel_env(scenario_of({**changes, "energy.initial": [0.0, 1.0, 2.0, 3.0]}), hops=1)
    assert [column - 1 for column in env.sights.columns[1][1:6:2]] == [1, 0, 2]
    seen, _ = env.reset(seed=0)
    values = seen["device_1"]["observation"]
    assert values.shape == env.observation_space("device_1")["observation"].shape == (10,)
    np.testing.assert_allclose(values[[0, 1, 3, 5]], [0, 1 / 3, 0, 2 / 3])
    np.testing.assert_array_equal(values[7:], env.state()[-4:][[1, 0, 2]])
    assert len(seen["device_3"]["observation"]) == 1 + 2 * 2 + 2


def test_nothing_from_beyond_its_hops_reaches_a_device():
    """Two networks that differ three hops away: the device's view is the same while its own world is."""
    scenario = scenario_of({"network.devices": 7, "energy.initial": [1.0] * 7})
    changed = scenario.override({"energy.initial": [1.0, 1.0, 1.0, 3.0, 3.0, 1.0, 1.0]})
    views = []
    for one in (scenario, changed):
        env = parallel_env(one, hops=2)
        seen, _ = env.reset(seed=1)
        views.append(seen["device_0"]["observation"])
    np.testing.assert_array_equal(*views)


def test_weather_is_seen():
    problem_like = scenario_of({}).override(WEATHER)
    env = parallel_env(problem_like, hops=0)
    seen = [env.reset()[0][f"device_{d}"]["observation"][2] for _ in range(8) for d in range(5)]
    assert set(seen) == {0.0, 1.0}


def test_mask_is_what_the_battery_pays_for():
    env = parallel_env(scenario_of({"energy.initial": [0.0, 1.99, 2.0, 2.5, 3.0]}))
    seen, infos = env.reset()
    masks = [seen[agent]["action_mask"].tolist() for agent in env.agents]
    assert masks == [[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]]
    assert [infos[agent]["action_mask"].tolist() for agent in env.agents] == masks


def test_an_action_beyond_the_battery_is_idle():
    env = parallel_env(scenario_of({"energy.initial": 0.0}))
    env.reset()
    _, rewards, _, _, infos = env.step(dict.fromkeys(env.agents, 2))
    assert all(info["infeasible"] for info in infos.values())
    assert list(rewards.values()) == pytest.approx([-1.0] * 5)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"hops": -1}, "hops: expected a whole number of at least 0, actual value -1"),
        ({"reward": "team"}, "reward: expected own, nearby, shared, actual value 'team'"),
        ({"seed": 0.5}, "seed: expected a whole number of at least 0, actual value 0.5"),
        ({"observations": "text"}, "observations: expected dict or box, actual value 'text'"),
        ({"agent_id": True}, "agent_id, clock: expected observations='box' with them, actual value 'dict'"),
    ],
)
def test_wrong_arguments(call, sentence):
    with pytest.raises(hm.ScenarioError, match=sentence):
        parallel_env("tiny", **call)


def test_steps_outside_an_episode_and_unknown_actions():
    env = parallel_env("tiny")
    with pytest.raises(RuntimeError, match="no episode is running"):
        env.step({})
    env.reset()
    with pytest.raises(ValueError, match="expected 0 to 2"):
        env.step(dict.fromkeys(env.agents, 3))
    with pytest.raises(ValueError, match=r"actions: expected integers, actual type torch.float"):
        env.step(dict.fromkeys(env.agents, 0.9))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"seed": -1}, "seed: expected a whole number of at least 0, actual value -1"),
        ({"seed": "one"}, "seed: expected a whole number of at least 0, actual value 'one'"),
        ({"options": {"episode": -3}}, "options.episode: expected a whole number of at least 0, actual value -3"),
        ({"options": {"episode": 1.5}}, "options.episode: expected a whole number of at least 0, actual value 1.5"),
        ({"seed": 4, "options": {"episode": None}}, "options.episode: expected a whole number"),
        ({"options": [1]}, r"options: expected a dictionary, actual value \[1\]"),
    ],
)
def test_a_refused_reset_changes_nothing(asked, sentence):
    env, undisturbed = parallel_env("tiny", seed=2), parallel_env("tiny", seed=2)
    with pytest.raises(hm.ScenarioError, match=sentence):
        env.reset(**asked)
    assert same(env.reset(), undisturbed.reset())
    with pytest.raises(hm.ScenarioError, match=sentence):
        env.reset(**asked)
    idle = dict.fromkeys(env.agents, 0)
    assert same(env.step(idle), undisturbed.step(idle))
    assert same(env.reset(), undisturbed.reset())
    assert env.episode == 1


def test_a_refused_step_changes_nothing():
    env, undisturbed = parallel_env("tiny"), parallel_env("tiny")
    env.reset(), undisturbed.reset()
    for wrong in ({}, dict.fromkeys(env.agents, 9), dict.fromkeys(env.agents[1:], 1)):
        with pytest.raises(hm.ScenarioError, match="actions: expected"):
            env.step(wrong)
    send = dict.fromkeys(env.agents, 1)
    assert same(env.step(send), undisturbed.step(send))


def same(one, other):
    """Whether results of `reset` or `step` are equal to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other) and type(one) is type(other)


@pytest.mark.parametrize("form", FORMS, ids=["dict", "box", "box, agent id"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])  # noqa: S301
@pytest.mark.parametrize("after", [None, 0, 5], ids=["never reset", "first slot", "mid-episode"])
def test_copies_behave_alike(after, copied, form):
    """Nobody gives a seed: the copy samples the same actions and meets the same episodes."""
    env = parallel_env("tiny", **form)
    if after is not None:
        env.reset()
    for _ in range(after or 0):
        env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    other = copied(env)
    for _ in range(2):
        if not env.agents:
            assert same(env.reset(), other.reset())
        while env.agents:
            one, two = ({agent: e.action_space(agent).sample() for agent in e.agents} for e in (env, other))
            assert one == two
            assert same(env.step(one), other.step(two))


def test_a_box_has_what_the_dictionary_has():
    changes = {"network.topology": "edges", "network.devices": 4, "network.edges": [[0, 1], [1, 2], [2, 3]]}
    plain, box = (parallel_env(scenario_of(changes), observations=form) for form in ("dict", "box"))
    named = parallel_env(scenario_of(changes), observations="box", agent_id=True, clock=2)
    for _ in range(3):
        (seen, _), (boxes, infos), (names, _) = plain.reset(), box.reset(), named.reset()
        for device, agent in enumerate(plain.agents):
            values = seen[agent]["observation"]
            padded = np.pad(values, (0, 10 - len(values)))  # devices in the middle see ten numbers, the ends seven
            assert boxes[agent].dtype == np.float32
            np.testing.assert_array_equal(boxes[agent], padded.astype(np.float32))
            np.testing.assert_array_equal(names[agent], [*boxes[agent], *np.eye(4)[device], 1, 0])
            np.testing.assert_array_equal(infos[agent]["action_mask"], seen[agent]["action_mask"])


def test_a_clock_counts_slots():
    env = parallel_env("tiny", observations="box", clock=3)
    seen = env.reset()[0]
    for slot in range(7):
        np.testing.assert_array_equal(seen["device_2"][-3:], np.eye(3)[slot % 3])
        seen = env.step(dict.fromkeys(env.agents, 0))[0]


def test_absence_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "heliomesh.interop.pettingzoo")
    with pytest.raises(ImportError, match=r"^PettingZoo is not installed "):
        import_module("heliomesh.interop.pettingzoo")
