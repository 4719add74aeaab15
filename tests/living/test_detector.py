"""Weather over all devices is no change of a device."""

import pytest
import torch

import heliomesh as hm
from heliomesh.field.living.detector import Expectation, Glimpse, harvest_moments
from heliomesh.model.policy import Noticed


def device_increments(sky: str, harvested_share: list[float]) -> torch.Tensor:
    """Increments for falling harvests of each device, from harvests in shares of their mean; (device,)."""
    problem = hm.build(hm.Scenario.load("tiny").override({"harvest.sky": sky}))
    devices, sites = problem.num_devices, problem.channel.num_sites
    weather, level = torch.zeros(1, devices, dtype=torch.long), torch.zeros(1, sites, dtype=torch.long)
    mean, _ = harvest_moments(problem, 0, weather)
    edges, nobody = problem.topology.num_edges, torch.zeros(1, devices, dtype=torch.bool)
    noticed = Noticed(mean * torch.tensor(harvested_share), torch.zeros(1, edges, dtype=torch.bool), nobody, mean)
    silence = torch.zeros(edges, 2, dtype=torch.float64)
    found = Expectation(problem, problem, silence).increments(Glimpse(0, weather, level, level, noticed))
    assert found["harvest"].shape == (1, 2)
    return found["harvest of a device"][0, devices:]


@pytest.mark.parametrize("sky", ["independent", "common"])
def test_a_device_that_alone_darkens_is_strange(sky):
    devices = hm.Scenario.load("tiny").network.devices
    falls = device_increments(sky, [0.0] + [1.0] * (devices - 1))
    assert falls[0] > 0
    assert bool((falls[1:] < 0).all())


def test_a_cloud_over_all_is_strange_for_no_device_under_a_common_sky():
    devices = hm.Scenario.load("tiny").network.devices
    assert bool((device_increments("common", [0.0] * devices) < 0).all())
    assert bool((device_increments("independent", [0.0] * devices) > 0).all())
