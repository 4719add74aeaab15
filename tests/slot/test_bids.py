"""Bids, grants and choices: equations by a plain loop, the bytes on air, and cases that pin them for all forms."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heliomesh.slot.bids import (
    NOBODY,
    Bid,
    Grant,
    Listener,
    Terms,
    bid,
    bid_bytes,
    choose,
    grant,
    grant_bytes,
    lean_step,
    message_bytes,
    read_bid,
    read_grant,
)
from tests.slot import golden_bids

GOLDEN = json.loads(golden_bids.FILE.read_text(encoding="utf-8"))
POWERS = (0.0, 0.1, 0.4)
STEP = 0.01


def terms(**changes: Any) -> Terms:
    return golden_bids.terms_of({**GOLDEN[0]["terms"], "lean_step": STEP, **changes})


@pytest.mark.parametrize("number", range(len(GOLDEN)))
def test_devices_alone_say_and_choose_what_the_golden_cases_tell(number):
    assert golden_bids.decided(GOLDEN[number]) == GOLDEN[number]["decided"]


def test_golden_cases_are_not_all_alike():
    """Some send and some do not, some grant and some do not: else they would pin little."""
    every = [one for case in GOLDEN for one in case["decided"]]
    assert {one["action"] for one in every} >= {1, 2, 3}
    assert 0 < sum(one["grant"].startswith("ff") for one in every) < len(every)


def test_a_slot_costs_few_bytes():
    """Ten classes, and up to eight powers that send."""
    assert message_bytes(10, 3) == (13, 5)
    assert sum(message_bytes(10, 9)) <= 32
    (said,) = {len(bytes.fromhex(one["bid"])) for case in GOLDEN for one in case["decided"]}
    (granted,) = {len(bytes.fromhex(one["grant"])) for case in GOLDEN for one in case["decided"]}
    assert (said, granted) == (13, 5)


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_bids(rng: np.random.Generator, *shape: int) -> Bid:
    progress, power = rng.integers(0, 2**16, shape), rng.integers(0, 3, shape)
    return Bid(tensor(progress), torch.from_numpy(power), tensor(rng.integers(-127, 128, (*shape, 4))))


def random_listener(rng: np.random.Generator, degree: int, *batch: int) -> Listener:
    return Listener(
        tensor(rng.uniform(0, 1024, batch)),
        tensor(rng.normal(size=(*batch, 4))),
        torch.from_numpy(rng.random(batch) < 0.5),
        tensor(rng.uniform(0.2, 0.5, (*batch, degree))),
        tensor(rng.uniform(0.1, 0.4, (*batch, degree))),
        tensor(np.sort(rng.random((*batch, degree, 3))) * [0, 1, 1]),
    )


def test_messages_keep_what_they_hold():
    rng = np.random.default_rng(0)
    for _ in range(20):
        said = random_bids(rng)
        for mine, theirs in zip(said, read_bid(bid_bytes(said)), strict=True):
            assert torch.equal(mine, theirs)
        worth = torch.cat([torch.zeros(1), torch.rand(2) * 100]).half().double()
        given = Grant(torch.tensor(int(rng.integers(0, 256))), worth)
        for mine, theirs in zip(given, read_grant(grant_bytes(given)), strict=True):
            assert torch.equal(mine, theirs)


def test_a_bid_tells_progress_and_lean_after_training_and_the_largest_power():
    lean, trained = tensor([0.1, -0.2]), tensor([0.5, 1.9])
    free = tensor([0.0, 1.0, 2.0, -0.5, 1.0, math.inf])  # training pays, and the sixth action is not affordable
    said, trains = bid(terms(), tensor(3.5), lean, trained, free)
    assert bool(trains)
    assert (said.progress, said.power, said.lean.tolist()) == (64 * 4.5, 2, [50, 127])  # 1.9 is beyond the largest
    poor = tensor([0.0, *[math.inf] * 5])
    said, trains = bid(terms(), tensor(1023.999), lean, trained, poor)
    assert not bool(trains)
    assert (said.progress, said.power, said.lean.tolist()) == (0, 0, [10, -20])


def plain_grant(own: Listener, bids: Bid, heard: Tensor, bias_weight: float) -> tuple[int, list[float]]:
    """The best neighbour and the worth of its packet by power, before rounding."""
    best, told, most = NOBODY, [0.0, 0.0, 0.0], 1e-10
    for place in range(len(heard)):
        ahead = float(bids.progress[place]) / 64 - float(own.progress)
        ahead -= 1024 * round(ahead / 1024)  # devices are never so far apart
        share, before, after = float(own.share[place]), 0.0, 0.0
        for mine, theirs in zip(own.lean.tolist(), bids.lean[place].tolist(), strict=True):
            before += mine**2
            after += ((1 - share) * mine + share * STEP * theirs) ** 2
        value = share * ahead - float(own.weight[place]) * bool(own.trains) + bias_weight * (before - after)
        top = int(bids.power[place])
        worth = [float(own.arrival[place, power]) * value if 0 < power <= top else 0.0 for power in range(3)]
        if heard[place] and worth[top] > most:
            best, told, most = place, worth, worth[top]
    return best, told


@pytest.mark.parametrize("degree", [1, 2, 5])
def test_a_grant_names_the_neighbour_whose_packet_is_worth_most(degree):
    rng = np.random.default_rng(degree)
    own, bids = random_listener(rng, degree, 40), random_bids(rng, 40, degree)
    heard = torch.from_numpy(rng.random((40, degree)) < 0.7)
    found = grant(terms(), own, bids, heard, 1.5)
    named = 0
    for row in range(40):
        alone, theirs = Listener(*(part[row] for part in own)), Bid(*(part[row] for part in bids))
        place, worth = plain_grant(alone, theirs, heard[row], 1.5)
        assert int(found.place[row]) == place
        assert found.worth[row].tolist() == pytest.approx(worth, rel=1e-3, abs=1e-7)  # half precision
        named += place != NOBODY
    assert 0 < named < 40


def plain_choice(
    price: Tensor, granted: Grant, grants: Grant, heard: Tensor, place: Tensor, half_duplex: bool
) -> list[float]:
    """What every action gains."""
    gains = []
    for power in (0, 1, 2, 0, 1, 2):
        gain = -0.5 * float(granted.worth.max()) if half_duplex and power else 0.0
        for number in range(len(heard)):
            worth, named = grants.worth[number].tolist(), int(grants.place[number])
            if not heard[number] or named == NOBODY:
                continue
            if named == int(place[number]):
                gain += worth[power]
            elif power:
                theirs = max(watt for watt, one in zip(POWERS, worth, strict=True) if one > 0)
                gain -= 0.5 * max(worth) * (1 - math.exp(-POWERS[power] / theirs))
        gains.append(gain)
    return gains


@pytest.mark.parametrize("half_duplex", [False, True])
def test_a_choice_weighs_grants_against_what_it_destroys(half_duplex):
    rng = np.random.default_rng(5)
    place = torch.from_numpy(rng.integers(0, 3, (60, 4)))
    named = rng.choice([0, 1, 2, NOBODY], (60, 4))
    worth = np.sort(rng.random((60, 4, 3))) * [0, 1, 1] * (named != NOBODY)[..., None]
    worth[rng.random((60, 4)) < 0.3, 2] = 0.0  # those who do not afford the largest power
    grants = Grant(torch.from_numpy(named), tensor(worth))
    granted = Grant(torch.zeros(60, dtype=torch.long), grants.worth[:, 0])
    heard, price = torch.from_numpy(rng.random((60, 4)) < 0.8), tensor(rng.normal(size=(60, 6)))
    price[::3, 4:] = torch.inf
    chosen, gains = choose(terms(half_duplex=half_duplex), price, granted, grants, heard, place)
    for row in range(60):
        own = Grant(granted.place[row], granted.worth[row])
        theirs = Grant(grants.place[row], grants.worth[row])
        expected = plain_choice(price[row], own, theirs, heard[row], place[row], half_duplex)
        assert gains[row].tolist() == pytest.approx(expected, abs=1e-12)
        assert int(chosen[row]) == int((price[row] - tensor(expected)).argmin())
    assert len(chosen.unique()) > 3


def test_a_message_that_is_not_heard_is_as_if_it_were_not_sent():
    """Whatever it holds, and whoever else is there."""
    rng = np.random.default_rng(7)
    own, bids = random_listener(rng, 3, 30), random_bids(rng, 30, 3)
    heard = torch.tensor([True, False, True]).expand(30, -1)
    other = Bid(
        *(
            torch.cat([part[:, :1], again[:, 1:2], part[:, 2:]], 1)
            for part, again in zip(bids, random_bids(rng, 30, 3), strict=True)
        )
    )
    for mine, theirs in zip(
        grant(terms(), own, bids, heard, 1.0), grant(terms(), own, other, heard, 1.0), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_whoever_hears_nothing_decides_alone():
    rng = np.random.default_rng(8)
    own, bids = random_listener(rng, 3, 10), random_bids(rng, 10, 3)
    silence = torch.zeros(10, 3, dtype=torch.bool)
    granted = grant(terms(), own, bids, silence, 1.0)
    assert (granted.place == NOBODY).all()
    assert not granted.worth.any()
    price = tensor(rng.normal(size=(10, 6)))
    heard_nothing = Grant(torch.full((10, 3), NOBODY), torch.zeros(10, 3, 3, dtype=torch.float64))
    chosen, gains = choose(terms(half_duplex=True), price, granted, heard_nothing, silence, torch.zeros(10, 3).long())
    assert not gains.any()
    assert torch.equal(chosen, price.argmin(-1))


def test_leans_fit_their_bytes():
    directions = tensor([[0.5, -2.0], [0.1, 1.9]])
    assert 127 * lean_step(directions) == pytest.approx(2.0)
    assert lean_step(torch.zeros(3, 2)) > 0
