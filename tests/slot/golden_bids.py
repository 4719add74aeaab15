"""Cases of bids, grants and choices that every form of the decision must reproduce, in `golden_bids.json`.

    python -m tests.slot.golden_bids        # writes them anew

Each case is a small network with all that its devices know, the bytes of their messages and what they choose.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heliomesh.slot.bids import (
    Account,
    Grant,
    Listener,
    Own,
    Terms,
    account_bytes,
    averaged,
    bid,
    bid_bytes,
    choose,
    grant,
    grant_bytes,
    harm_table,
    price,
    read_account,
    read_bid,
    read_grant,
    spending,
    trained,
    training_gain,
)

FILE = Path(__file__).with_suffix(".json")
RING = [[1, 4], [0, 2], [1, 3], [2, 4], [0, 3]]
HUB = [[1, 2, 3], [0, 2], [0, 1], [0]]
MESH = [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
POWERS = torch.tensor([0.0, 0.1, 0.4], dtype=torch.float64)


def case(neighbours: list[list[int]], seed: int, **terms: Any) -> dict[str, Any]:
    """What devices know, drawn by a seed; in a slot one bid, one grant and one model are lost."""
    rng = np.random.default_rng(seed)

    def drawn(low: float, high: float, *shape: int) -> Any:
        return rng.integers(low, high, shape, endpoint=True).tolist()

    devices = []
    for number, heard in enumerate(neighbours):
        degree = len(heard)
        devices.append(
            {
                "neighbours": heard,
                "place": [neighbours[other].index(number) for other in heard],
                "hears": [[int(one in neighbours[other]) for one in heard] for other in heard],
                "battery": drawn(0, 4000),
                "entries": sorted(drawn(0, 65535, 17), reverse=True),
                "spent": [0, 200, 1200, 720, 920, 1920],
                "needed": [0, 210, 1210, 730, 930, 1930],
                "point_bits": 8,
                "entry_bits": 1,
                "lean": drawn(-60, 60, 10),
                "direction": drawn(-127, 127, 10),
                "own_weight": drawn(8000, 12000),
                "share": drawn(6000, 16000, degree),
                "weight": drawn(3000, 12000, degree),
                "level": drawn(0, 1, degree),
                "arrival": [[[0, *sorted(drawn(0, 32768, 2))] for _ in range(2)] for _ in heard],
                "hears_bid": [True] * degree,
                "hears_grant": [True] * degree,
                "hears_model": [True] * degree,
            }
        )
    progress = drawn(0, 2**16)  # devices of a network are about equally far
    for own in devices:
        own["progress"] = (progress + drawn(-200, 200)) % 2**16
    devices[0]["hears_bid"][0] = devices[-1]["hears_grant"][-1] = devices[1]["hears_model"][0] = False
    known = {"waterfall": 1.0, "bias_bits": 10, "keeps": "arrived", "half_duplex": False}
    return {"terms": known | terms, "bias_weight": drawn(4000, 50000), "devices": devices}


def terms_of(given: dict[str, Any]) -> Terms:
    """The terms of a case."""
    action_power = torch.tensor([0, 1, 2, 0, 1, 2])
    trains = torch.tensor([False, False, False, True, True, True])
    harm = harm_table(POWERS, given["waterfall"])
    return Terms(action_power, trains, harm, given["bias_bits"], given["keeps"], given["half_duplex"])


def own_of(given: dict[str, Any]) -> Own:
    """What a device knows."""
    return Own(*(torch.tensor(given[name]) for name in Own._fields))


def account_of(given: dict[str, Any]) -> Account:
    """A device's account."""
    return Account(torch.tensor(given["progress"]), torch.tensor(given["lean"]))


def together(read: Any, messages: list[str], heard: list[int]) -> Any:
    """Messages of neighbours, stacked."""
    found = [read(bytes.fromhex(messages[other])) for other in heard]
    return type(found[0])(*(torch.stack(parts) for parts in zip(*found, strict=True)))


def decided(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages, action and account of every device, each computed by the device alone from bytes that it heard."""
    terms, devices, weight = terms_of(given["terms"]), given["devices"], given["bias_weight"]
    known = [(own_of(one), account_of(one)) for one in devices]
    prices, bids, trains = [], [], []
    for one, (own, account) in zip(devices, known, strict=True):
        battery = torch.tensor(one["battery"])
        cost = spending(own, torch.tensor(one["entries"]), battery)
        prices.append(price(terms, own, cost, battery, training_gain(terms, account, own.direction, weight)))
        said, means_to = bid(terms, account, own.direction, prices[-1])
        bids.append(bid_bytes(said).hex())
        trains.append(means_to)
    granted: list[Grant] = []
    for number, (one, (own, account)) in enumerate(zip(devices, known, strict=True)):
        arrival = own.arrival[torch.arange(len(one["level"])), one["level"]]
        listener = Listener(*account, trains[number], own.share, own.weight, arrival, own.hears)
        heard = together(read_bid, bids, one["neighbours"])
        granted.append(grant(terms, listener, heard, torch.tensor(one["hears_bid"]), weight))
    grants = [grant_bytes(said).hex() for said in granted]
    actions, accounts = [], []
    for number, (one, (own, account)) in enumerate(zip(devices, known, strict=True)):
        heard = together(read_grant, grants, one["neighbours"])
        reached = torch.tensor(one["hears_grant"])
        action = int(choose(terms, prices[number], granted[number], heard, reached, own.place)[0])
        actions.append(action)
        accounts.append(account_bytes(trained(account, own.direction, terms.trained[action])).hex())
    found = []
    for number, (one, (own, _)) in enumerate(zip(devices, known, strict=True)):
        sends = terms.action_power[torch.tensor([actions[other] for other in one["neighbours"]])] > 0
        told = together(read_account, accounts, one["neighbours"])
        now = read_account(bytes.fromhex(accounts[number]))
        after = averaged(terms, own, now, told, torch.tensor(one["hears_model"]) & sends)
        told_bytes = {"bid": bids[number], "grant": grants[number], "action": actions[number]}
        found.append({**told_bytes, "model": accounts[number], "after": account_bytes(after).hex()})
    return found


def main() -> None:
    """Write the cases with what devices say and do."""
    cases = [
        case(RING, 14),
        case(RING, 2, half_duplex=True, keeps="all"),
        case(HUB, 3, waterfall=0.3, keeps="oneself"),
        case(HUB, 4),
        case(MESH, 8),
    ]
    FILE.write_text(json.dumps([{**one, "decided": decided(one)} for one in cases]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
