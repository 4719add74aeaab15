"""How quickly does PPO of Stable-Baselines3 train on the batched environment, and what does it reach?

One core: PyTorch has one thread. Steps are those of Stable-Baselines3, one per device, episode and slot.
Rates are per second of processor time, so that other work on the machine does not count; wall time is printed too.
Costs are of 64 episodes with common random numbers. The last line is the rate of the training as a whole.

    python benchmarks/ppo.py [--scenario ring10] [--steps 2000000] [--episodes 64]
"""

import argparse
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize

import heliomesh as hm
from heliomesh.interop.stable_baselines3 import HarvestingVecEnv, learned_plan, vec_env

# A device that sees two hops sees the batteries of all with whom it shares a receiver.
SIGHT = {"hops": 2, "reward": "nearby"}
LEARNER = {
    "n_steps": 25,
    "batch_size": 2000,
    "n_epochs": 5,
    "learning_rate": 1e-3,
    "gamma": 0.9,
    "gae_lambda": 0.9,
    "ent_coef": 0.005,
}


def bare_rate(env: HarvestingVecEnv, slots: int = 400) -> float:
    """Steps a second of processor time of the environment alone, under random actions."""
    rng = np.random.default_rng(0)
    env.reset()
    started = time.process_time()
    for _ in range(slots):
        env.step(rng.integers(env.action_space.n, size=env.num_envs))
    return slots * env.num_envs / (time.process_time() - started)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", default="ring10")
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--episodes", type=int, default=64)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    problem = hm.build(hm.Scenario.load(asked.scenario))
    env = vec_env(asked.scenario, asked.episodes, seed=1000, **SIGHT)
    rate = bare_rate(env)
    print(
        f"environment alone: {rate:,.0f} steps, {rate / problem.num_devices:,.0f} slot-episodes a second", flush=True
    )

    scaled = VecNormalize(env, norm_obs=False, gamma=LEARNER["gamma"])
    model = PPO("MlpPolicy", scaled, seed=0, device="cpu", **LEARNER)
    started, began = time.process_time(), time.monotonic()
    model.learn(asked.steps)
    second, wall_second = time.process_time() - started, time.monotonic() - began

    plans = {"PPO": learned_plan(env, model)}
    plans |= {name: hm.plan(problem, name) for name in ("uncoordinated", "receiver")}
    for name, plan in plans.items():
        cost = hm.simulate(problem, plan, episodes=64, seed=0).cost
        print(f"{name:15s} cost {cost.mean():.3f} ± {1.96 * cost.std(ddof=1) / len(cost) ** 0.5:.3f}", flush=True)
    print(f"{model.num_timesteps:,} steps in {second:.0f} s of processor time, {wall_second:.0f} s by the clock")
    print(f"PPO: {model.num_timesteps / second:,.0f} env steps a second on one core")


if __name__ == "__main__":
    main()
