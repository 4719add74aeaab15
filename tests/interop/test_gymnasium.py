"""Batched and single-agent environments are the simulator, and Gymnasium and Stable-Baselines3 take them."""

import copy
import pickle
import sys
from importlib import import_module

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env

import heliomesh as hm
from heliomesh.interop.gymnasium import single_env, vector_env
from heliomesh.interop.pettingzoo import parallel_env

CHANGED = {"network.topology": "star", "slots": 15, "energy.compute_joule": 0.77}


@pytest.fixture(scope="module")
def scenario():
    return hm.Scenario.load("tiny").override(CHANGED)


def actions_of(problem, trace):
    """Action indices of a trace; (episode, slot, device)."""
    actions = problem.actions
    same = (actions.power_watt.numpy() == trace.power_watt[..., None]) & (
        actions.trained.numpy() == trace.scheduled[..., None]
    )
    return same.argmax(-1)


@pytest.mark.parametrize("view", ["device", "network"])
@pytest.mark.parametrize("planner", ["uncoordinated", "receiver", "skiptrain"])
def test_a_plans_actions_give_the_simulated_losses_exactly(scenario, planner, view):
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, planner), episodes=6, seed=7)
    chosen = actions_of(problem, trace)
    env = vector_env(scenario, 3, view=view)
    env.reset(seed=7)
    for batch in (slice(0, 3), slice(3, 6)):
        for slot in range(15):
            asked = chosen[batch, slot].reshape(env.action_space.shape)
            _, reward, ended, cut, infos = env.step(asked)
            found = infos if slot < 14 else infos["final_info"]
            loss = trace.update_loss[batch, slot]
            np.testing.assert_array_equal(found["update_loss"].reshape(3, 5), loss)
            expected = -loss.reshape(-1) if view == "device" else -loss.sum(1)
            np.testing.assert_allclose(reward, expected, rtol=1e-12)
            assert not found["infeasible"].any()
            assert not cut.any()
            assert set(ended) == {slot == 14}


def test_a_batch_is_the_episodes_of_the_plain_environment(scenario):
    """Device j of episode e sees, gets and may do what PettingZoo's environment says."""
    settings = {"hops": 2, "reward": "nearby", "agent_id": True, "clock": 3}
    env, plain = vector_env(scenario, 2, seed=5, **settings), parallel_env(scenario, observations="box", **settings)
    rng, actions = np.random.default_rng(0), len(hm.build(scenario).actions)
    asked = rng.integers(actions, size=(15, 2, 5))
    batch, infos = env.reset()
    rows = [(batch, np.zeros(10), infos["action_mask"])]
    for slot in range(14):
        seen, reward, _, _, infos = env.step(asked[slot].reshape(-1))
        rows.append((seen, reward, infos["action_mask"]))
    for episode in range(2):
        seen, infos = plain.reset(seed=5, options={"episode": episode})
        rewards = dict.fromkeys(seen, 0.0)
        for slot in range(14):
            for device, agent in enumerate(seen):
                row = 5 * episode + device
                np.testing.assert_array_equal(rows[slot][0][row], seen[agent])
                assert rows[slot][1][row] == pytest.approx(rewards[agent], abs=1e-12)
                np.testing.assert_array_equal(rows[slot][2][row], infos[agent]["action_mask"])
            told = {agent: int(asked[slot, episode, device]) for device, agent in enumerate(seen)}
            seen, rewards, _, _, infos = plain.step(told)


def test_the_end_begins_the_next_episodes(scenario):
    env, fresh = vector_env(scenario, 4), vector_env(scenario, 4)
    env.reset()
    for _ in range(15):
        seen, _, ended, _, infos = env.step(np.zeros(20, int))
    assert ended.all()
    assert env.batch.first_episode == 4
    next_seen, next_infos = fresh.reset(options={"episode": 4})
    np.testing.assert_array_equal(seen, next_seen)
    np.testing.assert_array_equal(infos["action_mask"], next_infos["action_mask"])
    assert infos["final_obs"].shape == (20,)
    assert infos["final_obs"][3][0] == 1.0  # the slot as a share of the horizon
    assert env.observation_space.contains(np.stack(list(infos["final_obs"])))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])  # noqa: S301
def test_copies_in_mid_episode_go_on_alike(scenario, copied):
    env = vector_env(scenario, 3)
    env.reset()
    for _ in range(4):
        env.step(env.action_space.sample())
    other = copied(env)
    for _ in range(30):
        (seen, reward, *_), (seen_too, reward_too, *_) = (one.step(one.action_space.sample()) for one in (env, other))
        np.testing.assert_array_equal(seen, seen_too)
        np.testing.assert_array_equal(reward, reward_too)


def test_gymnasium_checks_the_single_agent(scenario):
    check_env(single_env(scenario), skip_render_check=True)


def test_a_controller_that_does_as_planned_has_the_plans_cost(scenario):
    problem = hm.build(scenario)
    trace = hm.simulate(problem, hm.plan(problem, "receiver"), episodes=2, seed=3)
    chosen = actions_of(problem, trace)
    env = single_env(scenario, seed=3)
    for episode in range(2):
        env.reset()
        for slot in range(15):
            _, reward, over, _, infos = env.step(chosen[episode, slot])
            assert reward == pytest.approx(-trace.update_loss[episode, slot].sum(), abs=1e-12)
            np.testing.assert_array_equal(infos["update_loss"], trace.update_loss[episode, slot])
        assert over
        with pytest.raises(RuntimeError, match="the episode has ended"):
            env.step(chosen[0, 0])


@pytest.mark.parametrize(
    ("make", "call", "sentence"),
    [
        (vector_env, {"episodes": 0}, "episodes: expected a whole number of at least 1, actual value 0"),
        (vector_env, {"view": "all"}, "view: expected device or network, actual value 'all'"),
        (vector_env, {"reward": "team"}, "reward: expected own, nearby, shared, actual value 'team'"),
        (single_env, {"seed": -1}, "seed: expected a whole number of at least 0, actual value -1"),
    ],
)
def test_wrong_arguments(scenario, make, call, sentence):
    with pytest.raises(hm.ScenarioError, match=sentence):
        make(scenario, **call)


def test_wrong_actions_change_nothing(scenario):
    env, undisturbed = vector_env(scenario, 2), vector_env(scenario, 2)
    env.reset(), undisturbed.reset()
    for wrong in (np.zeros(9, int), np.full(10, 7), np.zeros(10)):
        with pytest.raises(hm.ScenarioError, match="actions: expected"):
            env.step(wrong)
    with pytest.raises(hm.ScenarioError, match="seed: expected"):
        env.reset(seed=[1, 2])
    np.testing.assert_array_equal(env.step(np.ones(10, int))[0], undisturbed.step(np.ones(10, int))[0])


def test_absence_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.base_class", None)
    monkeypatch.delitem(sys.modules, "heliomesh.interop.stable_baselines3", raising=False)
    with pytest.raises(ImportError, match=r"Stable-Baselines3 is not installed .*Run `pip install heliomesh\[rl\]`"):
        import_module("heliomesh.interop.stable_baselines3")


class TestStableBaselines3:
    """PPO on the batched environment."""

    @pytest.fixture
    def library(self):
        return pytest.importorskip("stable_baselines3")

    @pytest.fixture
    def made(self, library):
        from heliomesh.interop import stable_baselines3

        return stable_baselines3

    def test_steps_and_ends_are_those_of_the_batch(self, made, scenario):
        env, plain = made.vec_env(scenario, 2), vector_env(scenario, 2)
        env.seed(3)
        np.testing.assert_array_equal(env.reset(), plain.reset(seed=3)[0])
        total = np.zeros(10)
        for slot in range(15):
            seen, reward, ended, infos = env.step(np.ones(10, int))
            expected, same, *_, told = plain.step(np.ones(10, int))
            np.testing.assert_array_equal(seen, expected)
            np.testing.assert_array_equal(reward, same)
            total += reward
            assert ended.all() == (slot == 14)
        np.testing.assert_array_equal(infos[4]["terminal_observation"], told["final_obs"][4])
        assert [info["episode"]["r"] for info in infos] == pytest.approx(total.tolist())
        assert env.has_attr("action_masks")
        assert not env.has_attr("walls")
        masks = np.stack(env.env_method("action_masks"))
        np.testing.assert_array_equal(masks, plain.action_masks().astype(bool))

    def test_ppo_learns_and_its_plan_is_simulated(self, made, library, scenario):
        env = made.vec_env(scenario, 8)
        model = library.PPO("MlpPolicy", env, n_steps=15, batch_size=200, n_epochs=2, seed=0, device="cpu")
        model.learn(2400)
        assert model.num_timesteps == 2400
        problem = hm.build(scenario)
        plan = made.learned_plan(env, model)
        first, again = (hm.simulate(problem, plan, episodes=3, seed=1).cost for _ in range(2))
        np.testing.assert_array_equal(first, again)
        assert (first < 5).all()

    def test_a_central_controller_is_no_plan_of_devices(self, made, scenario):
        env = made.vec_env(scenario, 2, view="network")
        with pytest.raises(ValueError, match="expected the view 'device'"):
            made.learned_plan(env, None)
