"""The ascent of the prices: sparing gradients are the gradients, and memory decides how much is watched."""

from itertools import pairwise

import pytest
import torch

import heliomesh as hm
from heliomesh.planners.receiver import Options, _chosen_kinds, _without_table, estimate_bytes
from heliomesh.problem import dual
from heliomesh.problem.coordination import Coordination

MODES = {
    "receiver": {"network.topology": "complete", "slots": 11},
    "link": {"network.topology": "star", "channel.state": "link", "slots": 6},
    "duplex": {"network.topology": "complete", "network.devices": 4, "link.half_duplex": True, "slots": 7},
}


def priced(changes, scenario="tiny", receivers=None):
    problem = hm.build(hm.Scenario.load(scenario).override(changes))
    coordination = Coordination(problem)
    which = set(range(problem.num_devices)) if receivers is None else receivers(problem, coordination)
    return problem, coordination, dual.priced_groups(problem, coordination, which)


def duals(problem, groups, watchers):
    own = torch.rand(problem.idle_cost.shape, dtype=problem.dtype, generator=torch.Generator().manual_seed(1))
    return [dual.Dual(problem, groups, own, watchers, sparing) for sparing in (False, True)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seeing", [False, True])
def test_sparing_gradients_are_the_gradients(mode, seeing):
    problem, _, groups = priced(MODES[mode])
    watchers = dual._watched(problem, groups, 6.0) if seeing else dual._unwatched(problem)
    found = []
    for one in duals(problem, groups, watchers):
        generator = torch.Generator().manual_seed(0)
        levels = problem.channel.levels if seeing else 1
        shapes = [(len(one.weight), levels, *g.group.actors.shape, len(problem.actions)) for g in groups]
        prices = [torch.rand(s, dtype=problem.dtype, generator=generator).requires_grad_() for s in shapes]
        value = one.value(prices, 0.05)
        value.backward()
        with torch.no_grad():
            hard = one.value(prices, 0.0)
        found.append([value.detach(), hard, *(price.grad for price in prices)])
    assert all(price.abs().max() > 0 for price in found[0][2:])
    for full, spared in zip(*found, strict=True):
        torch.testing.assert_close(spared, full, rtol=1e-12, atol=1e-12)


def test_less_is_watched_and_then_nothing_as_the_memory_shrinks():
    problem, coordination, groups = priced(MODES["receiver"])
    gib, watched = 1.0, []
    while not watched or watched[-1]:
        found = dual._watched(problem, groups, gib)
        watched.append(0 if found is None else max(len(one.axes) for one in found))
        if found is not None:
            assert dual._ascent(problem, groups, found).num_bytes(sparing=True) <= gib * 2**30
        gib /= 1.5
    assert watched[0] == 4
    assert all(before >= after for before, after in pairwise(watched))
    assert len(set(watched)) > 2
    assert dual.least_bytes(problem, coordination, set(range(5))) > 0


def test_a_bound_with_little_memory_is_a_bound_and_none_is_refused():
    problem = hm.build(hm.Scenario.load("tiny").override(MODES["receiver"]))
    options = {"largest_table": 0, "steps": 20, "channel_steps": 5}
    ample = hm.plan(problem, "receiver", **options)
    coordination = Coordination(problem)
    least = dual.least_bytes(problem, coordination, set(range(5))) / 2**30
    little = hm.plan(problem, "receiver", memory_gib=1.01 * least, **options)
    assert little.lower_bound == pytest.approx(ample.lower_bound, rel=0.05)
    with pytest.raises(hm.TooLargeError, match=r"receiver tables and prices: expected at most .* lower the degree"):
        hm.plan(problem, "receiver", memory_gib=0.9 * least, **options)


@pytest.mark.parametrize("gib", [1.0, 6.0])
@pytest.mark.parametrize("largest_table", [None, 0])
def test_forty_devices_over_a_thousand_slots_fit_their_limit(gib, largest_table):
    """All slots' tensors at once would be 22 GiB; see also the peak measured in tests/faults/test_memory.py."""
    options = Options(memory_gib=gib, largest_table=largest_table)

    def without_table(problem, coordination):
        clusters, kind_of = _chosen_kinds(problem, coordination, options)
        assert estimate_bytes(problem, clusters, coordination, kind_of) <= gib * 2**30
        return _without_table(coordination, kind_of)

    problem, _, groups = priced({"network.devices": 40, "slots": 1008}, "geometric30", without_table)
    watchers = dual._watched(problem, groups, gib)
    assert watchers is not None
    ascent = dual._ascent(problem, groups, watchers)
    assert ascent.num_bytes(sparing=True) <= gib * 2**30 < ascent.num_bytes(sparing=False)
    assert dual._is_sparing(problem, groups, watchers, gib)
