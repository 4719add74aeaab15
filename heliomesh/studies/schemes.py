"""Schemes that experiments on learning compare: on the paper's terms, as shipped, and tuned on equal terms.

The paper's devices train and send in one action, and keep the weight of packets that are lost. Both rules are named,
since a scenario may name another than the default.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from heliomesh.jobs.job import IDEAL
from heliomesh.jobs.scheme import Scheme, scheme_of

COUPLED: dict[str, Any] = {"energy.actions": "coupled", "learning.aggregation": "model"}
SEPARATE: dict[str, Any] = {"energy.actions": "separate", "learning.aggregation": "reassigned"}
AGREE_SLOTS = 6
TUNED = Path(__file__).with_name("tuned.toml")  # what `benchmarks/tune.py` chose on held-out samples and other seeds
PLANNERS = (
    *("contributions", "bids", "news", "receiver", "decentralized", "myopic", "uncoordinated", "turns", "skiptrain"),
)
NOT_TUNED: Mapping[str, Mapping[str, Any]] = {"decentralized": {"hops": 2}}  # as the paper says

# plans for packets, rules that others use, plans for learning, and the ideal, as shipped
RIVALS = (
    Scheme("coupled", "receiver", changes=COUPLED),
    Scheme("proposal", "decentralized", {"hops": 2}, COUPLED),
    Scheme("skiptrain", "skiptrain", changes=SEPARATE),
    Scheme("turns", "turns", changes=SEPARATE),
    Scheme("fixed fraction", "fixed_fraction", changes=SEPARATE),
    Scheme("news", "news", changes=SEPARATE),
    Scheme("contributions", "contributions", changes=SEPARATE),
    Scheme(IDEAL, IDEAL, changes=COUPLED),
)
# what stands beside tuned planners: a trick without a plan for learning, and the paper's own terms
BESIDE_TUNED = (
    Scheme("receiver, coupled", "receiver", {}, {**COUPLED, "learning.aggregation": "reassigned"}, AGREE_SLOTS),
    *(Scheme(f"{one}, paper's terms", one, NOT_TUNED.get(one, {}), COUPLED) for one in ("receiver", "decentralized")),
)
# the changes that lead from `receiver` on the paper's terms to `contributions`: from one to the other
CHANGES: Mapping[str, tuple[str, str]] = {
    "rule": ("model", "reassigned"),
    "actions": ("coupled", "separate"),
    "agreement": ("none", f"last {AGREE_SLOTS} slots"),
    "plan": ("receiver", "contributions"),
}
# all train and send, and nothing is lost
IDEALS = tuple(
    Scheme(label, IDEAL, changes=COUPLED, agree=slots)
    for label, slots in ((IDEAL, 0), (f"{IDEAL}, agreement", AGREE_SLOTS))
)


def tuned_schemes(setting: str) -> list[Scheme]:
    """All planners as they were tuned for a setting, on equal terms; last `bids` whose messages batteries pay for."""
    found = [_tuned(planner, setting) for planner in PLANNERS]
    bids = found[PLANNERS.index("bids")]
    return [*found, replace(bids, label="bids, control paid", changes={**bids.changes, "energy.control": "paid"})]


def _tuned(planner: str, setting: str) -> Scheme:
    chosen = _read().get(setting, {}).get(planner)
    found = first_scheme(planner) if chosen is None else scheme_of(chosen)
    return replace(found, label=planner, changes={**SEPARATE, **found.changes})


@cache
def _read() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads(TUNED.read_text(encoding="utf-8"))


def first_scheme(planner: str) -> Scheme:
    """What the search for a planner begins with."""
    return Scheme(planner, planner, NOT_TUNED.get(planner, {}))
