"""Every planner on equal terms: the same energy, separate actions, one aggregation rule, and tuned knobs.

`tuned.toml` holds what `benchmarks/tune.py` chose by setting, on held-out training samples and on seeds that no
published number has. A planner without an entry has its default settings.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from heliomesh.jobs.scheme import Scheme, scheme_of
from heliomesh.studies.gain import SEPARATE

TUNED = Path(__file__).with_name("tuned.toml")
PLANNERS = (
    *("contributions", "bids", "news", "receiver", "decentralized"),
    *("myopic", "uncoordinated", "turns", "skiptrain"),
)
NOT_TUNED: Mapping[str, Mapping[str, Any]] = {"decentralized": {"hops": 2}}  # as the paper says


@cache
def tuned() -> Mapping[str, Mapping[str, str]]:
    """Scheme by planner, by setting."""
    return tomllib.loads(TUNED.read_text(encoding="utf-8"))


def first_scheme(planner: str) -> Scheme:
    """What the search for a planner begins with."""
    return Scheme(planner, planner, NOT_TUNED.get(planner, {}))


def fair_scheme(planner: str, setting: str) -> Scheme:
    """The planner as it was tuned for a setting, on equal terms."""
    chosen = tuned().get(setting, {}).get(planner)
    found = first_scheme(planner) if chosen is None else scheme_of(chosen)
    return replace(found, label=planner, changes={**SEPARATE, **found.changes})
