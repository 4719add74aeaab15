"""The paper's decentralised policy iteration (Algorithm 1), to the letter and in a form that works."""

from heliomesh.planners.decentralized.planner import Options, plan

__all__ = ["Options", "plan"]
