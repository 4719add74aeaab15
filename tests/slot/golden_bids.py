"""Cases of bids, grants and choices that every form of the decision must reproduce, in `golden_bids.json`.

    python -m tests.slot.golden_bids        # writes them anew

Each case is a small network with all that its devices know, the bytes of their messages and what they choose.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heliomesh.slot.bids import (
    Grant,
    Listener,
    Terms,
    bid,
    bid_bytes,
    choose,
    grant,
    grant_bytes,
    read_bid,
    read_grant,
)

FILE = Path(__file__).with_suffix(".json")
RING = [[1, 4], [0, 2], [1, 3], [2, 4], [0, 3]]
HUB = [[1, 2, 3], [0, 2], [0, 1], [0]]


def case(neighbours: list[list[int]], seed: int, **terms: Any) -> dict[str, Any]:
    """What devices know, drawn by a seed; in a slot one bid and one grant are lost."""
    rng = np.random.default_rng(seed)

    def drawn(low: float, high: float, *shape: int) -> Any:
        return np.round(rng.uniform(low, high, shape), 4).tolist()

    devices = []
    for heard in neighbours:
        degree, price = len(heard), drawn(-2, 2, 6)
        price[0] = 0.0
        unpaid = int(rng.integers(3, 7))  # the dearest actions are often out of reach
        devices.append(
            {
                "neighbours": heard,
                "progress": float(drawn(0, 1200)),
                "lean": drawn(-1, 1, 10),
                "lean_trained": drawn(-1, 1, 10),
                "price": [*price[:unpaid], *[None] * (6 - unpaid)],
                "share": drawn(0.2, 0.5, degree),
                "weight": drawn(0.1, 0.4, degree),
                "arrival": [[0.0, *sorted(drawn(0, 1, 2))] for _ in heard],
                "hears_bid": [True] * degree,
                "hears_grant": [True] * degree,
            }
        )
    progress = float(drawn(0, 1200))  # devices of a network are about equally far
    for own in devices:
        own["progress"] = round(progress + float(drawn(-3, 3)), 4)
    devices[0]["hears_bid"][0] = devices[-1]["hears_grant"][-1] = False
    known = {
        "power_watt": [0.0, 0.1, 0.4],
        "action_power": [0, 1, 2, 0, 1, 2],
        "trained": [False, False, False, True, True, True],
        "lean_step": 0.01,
        "waterfall": 1.0,
        "half_duplex": False,
    }
    return {"terms": known | terms, "bias_weight": float(drawn(0.2, 3)), "devices": devices}


def terms_of(given: dict[str, Any]) -> Terms:
    """The terms of a case."""
    return Terms(
        torch.tensor(given["power_watt"], dtype=torch.float64),
        torch.tensor(given["action_power"]),
        torch.tensor(given["trained"]),
        given["lean_step"],
        given["waterfall"],
        given["half_duplex"],
    )


def numbers(values: Any) -> Tensor:
    """A tensor; None is infinite."""
    return torch.tensor([float("inf") if one is None else one for one in values], dtype=torch.float64)


def listener(own: dict[str, Any], trains: Tensor) -> Listener:
    """A device's own state."""
    arrival = torch.tensor(own["arrival"], dtype=torch.float64)
    progress = torch.tensor(own["progress"], dtype=torch.float64)
    return Listener(progress, numbers(own["lean"]), trains, numbers(own["share"]), numbers(own["weight"]), arrival)


def decided(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages and action of every device of a case, each computed by the device alone from bytes that it heard."""
    terms, devices = terms_of(given["terms"]), given["devices"]
    first = [
        bid(
            terms,
            torch.tensor(own["progress"], dtype=torch.float64),
            numbers(own["lean"]),
            numbers(own["lean_trained"]),
            numbers(own["price"]),
        )
        for own in devices
    ]
    bids = [bid_bytes(said) for said, _ in first]
    second: list[Grant] = []
    for own, (_, trains) in zip(devices, first, strict=True):
        heard = [read_bid(bids[other]) for other in own["neighbours"]]
        together = type(heard[0])(*(torch.stack(parts) for parts in zip(*heard, strict=True)))
        reached = torch.tensor(own["hears_bid"])
        second.append(grant(terms, listener(own, trains), together, reached, given["bias_weight"]))
    grants = [grant_bytes(said) for said in second]
    found = []
    for number, own in enumerate(devices):
        heard_grants = [read_grant(grants[other]) for other in own["neighbours"]]
        together_grants = Grant(*(torch.stack(parts) for parts in zip(*heard_grants, strict=True)))
        place = torch.tensor([devices[other]["neighbours"].index(number) for other in own["neighbours"]])
        reached = torch.tensor(own["hears_grant"])
        action, _ = choose(terms, numbers(own["price"]), second[number], together_grants, reached, place)
        found.append({"bid": bids[number].hex(), "grant": grants[number].hex(), "action": int(action)})
    return found


def main() -> None:
    """Write the cases with what devices say and do."""
    cases = [case(RING, 1), case(RING, 2, half_duplex=True), case(HUB, 3, waterfall=0.3), case(HUB, 4)]
    FILE.write_text(json.dumps([{**one, "decided": decided(one)} for one in cases]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
