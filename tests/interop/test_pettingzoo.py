"""The environment passes PettingZoo's own tests and is the simulator to the last bit."""

import subprocess
import sys

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


@pytest.mark.parametrize("reward", ["own", "shared"])
@pytest.mark.parametrize("changes", SCENARIOS.values(), ids=SCENARIOS)
def test_pettingzoo_api(changes, reward, capsys):
    env = parallel_env(scenario_of(changes), hops=1, reward=reward)
    parallel_api_test(env, num_cycles=30)
    assert "Passed" in capsys.readouterr().out


def test_pettingzoo_seeds():
    parallel_seed_test(lambda: parallel_env("tiny", hops=2), num_cycles=30)


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


def test_what_a_device_sees():
    """Device 1 of a line sees one hop: slot, three batteries and weathers, three channels, itself first."""
    changes = {"network.topology": "edges", "network.devices": 4, "network.edges": [[0, 1], [1, 2], [2, 3]]}
    env = parallel_env(scenario_of({**changes, "energy.initial": [0.0, 1.0, 2.0, 3.0]}), hops=1)
    assert env.sights[1].members == (1, 0, 2)
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
        ({"hops": -1}, "hops: expected at least 0, actual value -1"),
        ({"reward": "team"}, "reward: expected own or shared, actual value 'team'"),
    ],
)
def test_wrong_arguments(call, sentence):
    with pytest.raises(hm.ScenarioError, match=sentence):
        parallel_env("tiny", **call)


def test_steps_outside_an_episode_and_unknown_actions():
    env = parallel_env("tiny")
    with pytest.raises(RuntimeError, match="never reset"):
        env.step({})
    env.reset()
    with pytest.raises(ValueError, match="expected 0 to 2"):
        env.step(dict.fromkeys(env.agents, 3))
    with pytest.raises(ValueError, match=r"actions: expected integers, actual type torch.float"):
        env.step(dict.fromkeys(env.agents, 0.9))


def test_absence_is_said_in_a_sentence():
    code = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "try:\n    import heliomesh.interop.pettingzoo\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, encoding="utf-8")  # noqa: S603
    assert done.stdout.startswith("pettingzoo: expected to be installed, as `pip install heliomesh[pettingzoo]` does")
