"""Bids, grants and choices: equations by a plain loop, the bytes on air, and cases that pin them for all forms."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heliomesh.slot.bids import (
    BARRED,
    NOBODY,
    Account,
    Bid,
    Grant,
    Listener,
    Terms,
    account_bytes,
    averaged,
    believable,
    bid,
    bid_bytes,
    choose,
    grant,
    grant_bytes,
    harm_table,
    lean_step,
    message_bytes,
    price,
    read_account,
    read_bid,
    read_grant,
    rounded,
    spending,
    trained,
    training_gain,
)
from tests.slot import golden_bids

GOLDEN = json.loads(golden_bids.FILE.read_text(encoding="utf-8"))
POWERS = golden_bids.POWERS.tolist()


def terms(**changes: Any) -> Terms:
    return golden_bids.terms_of({**GOLDEN[0]["terms"], **changes})


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
    return torch.tensor(values, dtype=torch.int64)


def random_bids(rng: np.random.Generator, *shape: int) -> Bid:
    progress, power = rng.integers(0, 2**16, shape), rng.integers(0, 3, shape)
    return Bid(tensor(progress), tensor(power), tensor(rng.integers(-127, 128, (*shape, 4))))


def random_listener(rng: np.random.Generator, degree: int, *batch: int) -> Listener:
    return Listener(
        tensor(rng.integers(0, 2**16, batch)),
        tensor(rng.integers(-127, 128, (*batch, 4))),
        torch.from_numpy(rng.random(batch) < 0.5),
        tensor(rng.integers(6000, 16000, (*batch, degree))),
        tensor(rng.integers(3000, 13000, (*batch, degree))),
        tensor(np.sort(rng.integers(0, 2**15, (*batch, degree, 3))) * [0, 1, 1]),
        tensor(rng.integers(0, 2, (*batch, degree, degree)) * (1 - np.eye(degree, dtype=np.int64))),
    )


def random_worth(rng: np.random.Generator, *shape: int) -> Tensor:
    """What messages hold: 12 bits, shifted by up to 15."""
    return tensor(np.sort(rng.integers(1, 2**12, (*shape, 3)) << rng.integers(0, 16, (*shape, 1))) * [0, 1, 1])


def test_messages_keep_what_they_hold():
    rng = np.random.default_rng(0)
    for _ in range(20):
        said = random_bids(rng)
        for mine, theirs in zip(said, read_bid(bid_bytes(said)), strict=True):
            assert torch.equal(mine, theirs)
        account = Account(said.progress, said.lean)
        for mine, theirs in zip(account, read_account(account_bytes(account)), strict=True):
            assert torch.equal(mine, theirs)
        given = Grant(tensor(int(rng.integers(0, 256))), random_worth(rng))
        for mine, theirs in zip(given, read_grant(grant_bytes(given)), strict=True):
            assert torch.equal(mine, theirs)


def test_products_are_rounded_to_the_nearest_and_halves_to_even_numbers():
    products = torch.arange(-40, 41)
    for bits in (1, 3):
        assert rounded(products, bits).tolist() == [round(number / 2**bits) for number in products.tolist()]


def test_a_bid_tells_the_account_after_training_and_the_largest_power():
    account, direction = Account(tensor(224), tensor([10, -20])), tensor([90, 127])
    free = tensor([0, 1, 2, -1, 1, BARRED])  # training pays, and the sixth action is not affordable
    said, trains = bid(terms(), account, direction, free)
    assert bool(trains)
    assert (said.progress, said.power, said.lean.tolist()) == (288, 2, [20, -2])
    poor = tensor([0, *[BARRED] * 5])
    said, trains = bid(terms(), account._replace(progress=tensor(2**16 + 7)), direction, poor)
    assert not bool(trains)
    assert (said.progress, said.power, said.lean.tolist()) == (7, 0, [10, -20])


def test_energy_between_two_points_costs_what_lies_between():
    """Points 256 units apart; what is left of 1000 units is 1000, 744, 500, 0 and nothing."""
    own = golden_bids.own_of(GOLDEN[0]["devices"][0])
    own = own._replace(spent=tensor([0, 256, 500, 1000, 1200, 9999]), needed=tensor([0, 257, 501, 1001, 1, 9999]))
    entries = tensor([1000, 700, 400, 200, 100, 0])
    cost = spending(own, entries, tensor(1000))
    exact = [2 * np.interp(left / 256, range(6), entries.tolist()) for left in (1000, 744, 500, 0, 0, 0)]
    assert cost.tolist() == pytest.approx(exact, abs=2)
    found = price(terms(), own, cost, tensor(1000), tensor(50))
    assert found.tolist() == [cost[0], cost[1], cost[2], BARRED, cost[4] - 50, BARRED]


def test_training_gains_a_slot_less_what_its_bias_costs():
    account, direction = Account(tensor(0), tensor([10, -20])), tensor([90, 40])
    found = training_gain(terms(), account, direction, 2048)  # a squared step of lean costs two
    assert int(found) == 2**16 - 2 * (20**2 + 12**2 - 10**2 - 20**2)


@pytest.mark.parametrize("keeps", ["oneself", "all", "arrived"])
def test_accounts_are_averaged_as_models_are(keeps):
    rng = np.random.default_rng(1)
    own = golden_bids.own_of(GOLDEN[2]["devices"][0])  # of three neighbours
    for _ in range(50):
        account = Account(tensor(int(rng.integers(2**16))), tensor(rng.integers(-127, 128, 10)))
        told = Account(
            (account.progress + tensor(rng.integers(-900, 900, 3))) % 2**16, tensor(rng.integers(-127, 128, (3, 10)))
        )
        arrived = rng.random(3) < 0.6
        weight, kept = own.weight.numpy() / 2**15 * arrived, float(own.own_weight) / 2**15
        total = max(weight.sum(), 1e-9)
        share = weight * {"oneself": 1, "all": 1 / (kept + total), "arrived": (1 - kept) / total}[keeps]
        found = averaged(terms(keeps=keeps), own, account, told, torch.from_numpy(arrived))
        ahead = (told.progress - account.progress + 2**15) % 2**16 - 2**15
        assert float(found.progress - account.progress) == pytest.approx((share * ahead.numpy()).sum(), abs=0.6)
        lean = account.lean.numpy() + (share[:, None] * (told.lean - account.lean).numpy()).sum(0)
        assert found.lean.tolist() == pytest.approx(lean.clip(-127, 127).tolist(), abs=0.6)
    trains = trained(account, own.direction, torch.tensor(True))
    assert int(trains.progress - account.progress) == 64
    assert trains.lean.tolist() == pytest.approx(
        (account.lean + (own.direction - account.lean) / 8).tolist(), abs=0.5
    )


def plain_value(share: float, mine: Sequence[float], theirs: Sequence[float], bias_weight: int) -> float:
    """What a packet is worth, of progress and leans (1 + direction,) of who gets it and who sends it."""
    ahead = (theirs[0] - mine[0]) / 64
    ahead -= 1024 * round(ahead / 1024)  # devices are never so far apart
    before = sum(x**2 for x in mine[1:])
    after = sum(((1 - share) * x + share * y) ** 2 for x, y in zip(mine[1:], theirs[1:], strict=True))
    return 2**16 * share * ahead + bias_weight / 2**10 * (before - after)


def plain_grant(own: Listener, bids: Bid, heard: Tensor, bias_weight: int) -> tuple[int, list[float]]:
    """The neighbour whose packet is worth most to all who get it, and its own worth by power, in real numbers."""
    best, told, most = NOBODY, [0.0, 0.0, 0.0], -np.inf
    account = [float(own.progress), *own.lean.tolist()]
    theirs = [[float(bids.progress[place]), *bids.lean[place].tolist()] for place in range(len(heard))]
    for place in range(len(heard)):
        share, top = float(own.share[place]) / 2**15, int(bids.power[place])
        value = plain_value(share, account, theirs[place], bias_weight)
        value -= 2**16 * float(own.weight[place]) / 2**15 * bool(own.trains)
        to_all = value + sum(
            plain_value(share, theirs[other], theirs[place], bias_weight)
            for other in range(len(heard))
            if heard[other] and own.hears[other, place]
        )
        arrival = [float(own.arrival[place, power]) / 2**15 if 0 < power <= top else 0.0 for power in range(3)]
        if heard[place] and arrival[top] > 0 and arrival[top] * to_all > most:
            best, told, most = place, [one * max(value, 0.0) for one in arrival], arrival[top] * to_all
    return (best, told) if max(told) > 0.5 else (NOBODY, [0.0, 0.0, 0.0])


@pytest.mark.parametrize("degree", [1, 2, 5])
def test_a_grant_names_the_neighbour_whose_packet_is_worth_most(degree):
    rng = np.random.default_rng(degree)
    own, bids = random_listener(rng, degree, 40), random_bids(rng, 40, degree)
    heard = torch.from_numpy(rng.random((40, degree)) < 0.7)
    found = grant(terms(), own, bids, heard, 1500)
    named = 0
    for row in range(40):
        alone, theirs = Listener(*(part[row] for part in own)), Bid(*(part[row] for part in bids))
        place, worth = plain_grant(alone, theirs, heard[row], 1500)
        assert int(found.place[row]) == place
        limited = np.minimum(worth, 4095 << 15)
        assert found.worth[row].tolist() == pytest.approx(limited.tolist(), rel=2**-11, abs=2)  # 12 bits
        named += place != NOBODY
    assert 0 < named < 40


def test_receivers_that_hear_each_other_name_the_same_device():
    """Four devices, equally far, in a full mesh: alone, each would name whose lean is farthest from its own."""
    leans = tensor([[100, 20, -60, -60], [20, 100, -60, -60], [-60, -60, 100, 20], [-60, -60, 20, 90]])
    near = [[other for other in range(4) if other != device] for device in range(4)]
    share, arrival = torch.full((3,), 2**14), torch.full((3, 3), 2**15)
    everyone = torch.ones(3, dtype=torch.bool)
    named = {}
    for hears in (False, True):
        known = int(hears) * (1 - torch.eye(3, dtype=torch.int64))
        names = []
        for device in range(4):
            own = Listener(tensor(64), leans[device], torch.tensor(False), share, share // 4, arrival, known)
            bids = Bid(torch.full((3,), 64), torch.full((3,), 2), leans[near[device]])
            names.append(near[device][int(grant(terms(), own, bids, everyone, 1500).place)])
        named[hears] = [names.count(device) for device in range(4)]
    assert max(named[False]) == 2
    assert max(named[True]) == 3


def plain_choice(
    price: Tensor, granted: Grant, grants: Grant, heard: Tensor, place: Tensor, half_duplex: bool
) -> list[float]:
    """What every action gains, in real numbers."""
    harm = harm_table(golden_bids.POWERS, 1.0) / 2**15
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
                theirs = max(number for number, one in enumerate(worth) if one > 0)
                gain -= max(worth) * float(harm[theirs, power])
        gains.append(gain)
    return gains


def test_a_neighbour_that_claims_too_much_is_believed_to_be_so_far_ahead():
    mine, lead = tensor(65530), tensor([0, 3, 512, 513, 30 * 64, 2**15 - 1, -1, -900])
    claimed = Bid((mine + lead) % 2**16, torch.ones(8, dtype=torch.long), torch.zeros(8, 4, dtype=torch.long))
    found = believable(terms()._replace(most_lead=512), claimed, mine)
    assert torch.equal(believable(terms(), claimed, mine).progress, claimed.progress)
    assert ((found.progress - mine + 2**15) % 2**16 - 2**15).tolist() == [0, 3, 512, 512, 512, 512, -1, -900]
    assert torch.equal(found.progress[[0, 1, 2, 6, 7]], claimed.progress[[0, 1, 2, 6, 7]])  # to the bit
    assert found[1:] == claimed[1:]


def test_interference_destroys_half_of_what_the_waterfall_says():
    found = harm_table(golden_bids.POWERS, 0.8) / 2**15
    for theirs in (1, 2):
        exact = [0.5 * (1 - np.exp(-0.8 * mine / POWERS[theirs])) for mine in POWERS]
        assert found[theirs].tolist() == pytest.approx(exact, abs=2**-16)
    assert not found[0].any()


@pytest.mark.parametrize("half_duplex", [False, True])
def test_a_choice_weighs_grants_against_what_it_destroys(half_duplex):
    rng = np.random.default_rng(5)
    place = torch.from_numpy(rng.integers(0, 3, (60, 4)))
    named = rng.choice([0, 1, 2, NOBODY], (60, 4))
    worth = random_worth(rng, 60, 4).clamp(max=2**19) * torch.from_numpy(named != NOBODY)[..., None]
    worth[rng.random((60, 4)) < 0.3, 2] = 0  # those who do not afford the largest power
    grants = Grant(torch.from_numpy(named), worth)
    granted = Grant(torch.zeros(60, dtype=torch.long), grants.worth[:, 0])
    heard, price = torch.from_numpy(rng.random((60, 4)) < 0.8), tensor(rng.integers(-(2**17), 2**17, (60, 6)))
    price[::3, 4:] = BARRED
    chosen, gains = choose(terms(half_duplex=half_duplex), price, granted, grants, heard, place)
    for row in range(60):
        own = Grant(granted.place[row], granted.worth[row])
        theirs = Grant(grants.place[row], grants.worth[row])
        expected = plain_choice(price[row], own, theirs, heard[row], place[row], half_duplex)
        assert gains[row].tolist() == pytest.approx(expected, abs=4)
        assert int(chosen[row]) == int((price[row] - torch.tensor(expected)).argmin())
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
        grant(terms(), own, bids, heard, 1000), grant(terms(), own, other, heard, 1000), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_whoever_hears_nothing_decides_alone():
    rng = np.random.default_rng(8)
    own, bids = random_listener(rng, 3, 10), random_bids(rng, 10, 3)
    silence = torch.zeros(10, 3, dtype=torch.bool)
    granted = grant(terms(), own, bids, silence, 1000)
    assert (granted.place == NOBODY).all()
    assert not granted.worth.any()
    price = tensor(rng.integers(-(2**17), 2**17, (10, 6)))
    heard_nothing = Grant(torch.full((10, 3), NOBODY), torch.zeros(10, 3, 3, dtype=torch.int64))
    chosen, gains = choose(terms(half_duplex=True), price, granted, heard_nothing, silence, torch.zeros(10, 3).long())
    assert not gains.any()
    assert torch.equal(chosen, price.argmin(-1))


def test_the_largest_numbers_do_not_overflow():
    """Of 32 bits, which C has: prices, gains and their difference."""
    most = tensor([0, 4095 << 15, 4095 << 15])
    grants = Grant(tensor([0] * 20), most.expand(20, -1))
    heard, price = torch.ones(20, dtype=torch.bool), tensor([0, -(2**28), 2**28, 0, 0, BARRED])
    for place in (0, 1):
        _, gains = choose(terms(half_duplex=True), price, Grant(tensor(0), most), grants, heard, tensor([place] * 20))
        assert (price - gains).abs().max() < 2**31
        assert gains.abs().max() <= 2**29


def test_leans_fit_their_bytes():
    directions = torch.tensor([[0.5, -2.0], [0.1, 1.9]])
    assert 127 * lean_step(directions) == pytest.approx(2.0)
    assert lean_step(torch.zeros(3, 2)) > 0
