"""Plans for learning whose devices speak little, or not at all."""

from heliomesh.planners.bids.messages import Bidders
from heliomesh.planners.bids.planner import OBJECTIVE, READS_LEARNING, VERSION, Options, plan

__all__ = ["OBJECTIVE", "READS_LEARNING", "VERSION", "Bidders", "Options", "plan"]
