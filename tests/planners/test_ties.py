"""Ties are broken by a rule: other processors, which round otherwise, come to the same actions."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import heliomesh as hm
from heliomesh.slot.ties import first_least, tied

PLANNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "centralized": ("centralized", {}),
    "receiver": ("receiver", {}),
    "prices": ("prices", {}),
    "prices alone": ("prices", {"coordinate": False}),
    "decentralized": ("decentralized", {"hops": 1}),
    "myopic": ("myopic", {}),
    "myopic exhaustive": ("myopic", {"mode": "exhaustive"}),
    "battery_threshold": ("battery_threshold", {}),
    "contributions": ("contributions", {"practice": 2, "passes": 1}),
    "news": ("news", {}),
    "bids": ("bids", {"practice": 2, "passes": 1}),
}
# operations whose last bit depends on the processor: sums in other orders, fused multiplications, approximations
_ROUNDED = {"mm", "bmm", "addmm", "sum", "mean", "exp", "expm1", "log", "pow", "sqrt", "lerp", "_softmax"}
_ROUNDED |= {"exp_", "index_add", "index_add_", "scatter_add_"}


class OtherRounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves the last bit of such operations at random, as other processors do by their own rules."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.random = torch.Generator().manual_seed(1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation, rounded otherwise."""
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _ROUNDED and isinstance(found, Tensor) and found.dtype == torch.float64:
            bit = torch.randint(-1, 2, found.shape, generator=self.random).double() * torch.finfo(torch.float64).eps
            found.mul_(1 + bit)
        return found


def powers(planner: str) -> bytes:
    """Powers of all devices in all slots of eight episodes, as bytes."""
    name, options = PLANNERS[planner]
    separate = {"energy.actions": "separate"} if name in ("contributions", "news", "bids") else {}
    problem = hm.build(hm.Scenario.load("tiny").override(separate))  # whole joules: many ties
    trace = hm.simulate(problem, hm.plan(problem, name, **options), episodes=8, seed=0)
    return bytes(trace.power_watt.tobytes())


@pytest.mark.parametrize("planner", PLANNERS)
def test_the_last_bit_of_costs_decides_nothing(planner: str) -> None:
    usual = powers(planner)
    with OtherRounding():
        assert powers(planner) == usual


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("unit", ["default", "avx2"])
def test_other_processors_come_to_the_same_actions(unit: str, threads: str) -> None:
    code = "from tests.planners.test_ties import PLANNERS, powers; import hashlib; "
    code += "print([hashlib.sha256(powers(p)).hexdigest() for p in PLANNERS])"
    there = {"ATEN_CPU_CAPABILITY": unit, "OMP_NUM_THREADS": threads, "MKL_CBWR": "COMPATIBLE"}
    here, elsewhere = (
        subprocess.run([sys.executable, "-c", code], env=os.environ | more, stdout=subprocess.PIPE, check=True)  # noqa: S603
        for more in ({}, there)
    )
    assert here.stdout == elsewhere.stdout


def test_the_first_of_equal_costs_is_taken() -> None:
    costs = torch.tensor(
        [[3.0, 1.0 + 1e-13, 1.0], [torch.inf, 2e5, 2e5 - 1e-7], [1.0, 0.9, 1.0]], dtype=torch.float64
    )
    assert first_least(costs).tolist() == [1, 1, 1]
    assert first_least(costs.T.contiguous(), 0).tolist() == [1, 1, 1]
    assert first_least(costs.float()[:1]).tolist() == [1]


def test_costs_that_differ_are_told_apart() -> None:
    costs = torch.tensor([[1.0, 1.0 - 1e-8], [0.0, -1e-8], [1e3, 1e3 - 1e-5]], dtype=torch.float64)
    assert first_least(costs).tolist() == [1, 1, 1]
    assert tied(torch.tensor([0.5, 0.5, 0.6], dtype=torch.float64), 0).tolist() == [True, True, False]
