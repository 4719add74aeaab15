"""The paper's decentralised policy iteration (Algorithm 1), to the letter and in a form that works."""

from heliomesh.planners.decentralized.planner import VARIANTS, Options, plan, smaller

__all__ = ["VARIANTS", "Options", "plan", "smaller"]
