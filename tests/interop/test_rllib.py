"""RLlib takes the PettingZoo environment by its own wrapper."""

import pytest

pytest.importorskip("ray.rllib", reason="pip install heliomesh[rllib]", exc_type=ImportError)

import numpy as np
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

from heliomesh.interop.pettingzoo import parallel_env


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_wrapper_plays_an_episode():
    plain = parallel_env("tiny", observations="box", agent_id=True)
    env = ParallelPettingZooEnv(parallel_env("tiny", observations="box", agent_id=True))
    seen, _ = env.reset(seed=3)
    expected, _ = plain.reset(seed=3)
    assert env.get_observation_space("device_0") == plain.observation_space("device_0")
    over = False
    while not over:
        for agent, values in expected.items():
            np.testing.assert_array_equal(seen[agent], values)
        seen, rewards, ended, _, _ = env.step(dict.fromkeys(plain.agents, 1))
        expected, same, *_ = plain.step(dict.fromkeys(plain.agents, 1))
        assert rewards == same
        over = ended["__all__"]
    assert not plain.agents
