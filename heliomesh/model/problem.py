"""The decision problem: kernels, actions, neighbourhoods and the independent parts it falls into."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heliomesh.common.arguments import checked
from heliomesh.common.tensors import with_tensors
from heliomesh.model.actions import Actions, action_energies, actions_on, consumption
from heliomesh.model.factor import Variable, energy, site
from heliomesh.model.workload import check_slot, transmit_second
from heliomesh.physics.battery import Battery, aligned_battery, build_battery, initial_level_law
from heliomesh.physics.channel import Channel, build_channel
from heliomesh.physics.harvesting import Harvest, HarvestReplay, build_harvest, with_law
from heliomesh.physics.link import Radio, build_link
from heliomesh.physics.storage import Consumption, build_losses
from heliomesh.physics.topology import Topology, build_topology
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.section import MOST_WATT


@dataclass(frozen=True)
class Part:
    """A set of devices and sites whose decisions do not touch the rest of the network."""

    devices: tuple[int, ...]
    sites: tuple[int, ...]
    receivers: tuple[int, ...]

    @property
    def states(self) -> tuple[Variable, ...]:
        """State variables: sites, then energies."""
        return (*map(site, self.sites), *map(energy, self.devices))


@dataclass(frozen=True)
class Problem:
    """A finite-horizon, multi-agent decision problem on a graph.

    Attributes
    ----------
    scenario
        Every input.
    topology
        Who hears whom, and the weights of averaging.
    channel
        Levels of the power gain and how they change.
    harvest
        Energy that devices get in each slot, as a law or a replayed series.
    battery
        Capacities and the planning grid.
    link
        From powers and gains to packet errors.
    actions
        Power, training and energy of every action.
    dtype
        Numbers of the planners' tables.
    device
        Where they live.
    cycle_slots
        Slots of a cycle whose first slot follows its last (`model/endless.py`); None where slots end.
    """

    scenario: Scenario
    topology: Topology
    channel: Channel
    harvest: Harvest
    battery: Battery
    link: Radio
    actions: Actions
    dtype: torch.dtype
    device: torch.device
    cycle_slots: int | None = None

    @property
    def slots(self) -> int:
        """Horizon T, or the slots of a cycle."""
        return self.cycle_slots or self.scenario.slots

    @property
    def endless(self) -> bool:
        """Whether the first slot follows the last."""
        return self.cycle_slots is not None

    @property
    def unrolled_slots(self) -> int:
        """Slots through which Algorithm 1 runs backwards: T, or where slots come again, two cycles or more."""
        if not self.endless:
            return self.slots
        return self.slots * max(-(-_LOOK_AHEAD_SLOTS // self.slots), 2)

    @property
    def num_devices(self) -> int:
        """Number of devices m."""
        return self.topology.num_devices

    @property
    def num_energy(self) -> int:
        """Energy states per device: weather levels × battery levels."""
        return self.harvest.law.num_weather * self.battery.levels

    @cached_property
    def wide(self) -> "Problem":
        """The same problem in float64, in which bounds are certified: float32 may round them upward."""
        return self if self.dtype == torch.float64 else replace(self, dtype=torch.float64)

    @property
    def is_steady(self) -> bool:
        """Whether all slots have one harvest law, so that far from the horizon they are alike."""
        return len(self.harvest.law.joule) == 1

    def size(self, variable: Variable) -> int:
        """Number of values of a variable."""
        return {"site": self.channel.levels, "energy": self.num_energy, "action": len(self.actions)}[variable.kind]

    def sizes(self, scope: tuple[Variable, ...]) -> tuple[int, ...]:
        """Number of values of several variables."""
        return tuple(map(self.size, scope))

    def kernel(self, variable: Variable, slot: int) -> Tensor:
        """Transition kernel [now, next] of a state variable; for energies, ``now`` is the state after spending."""
        if variable.kind == "site":
            return self.channel.kernel.to(self.dtype)
        return self.energy_kernels(slot)[variable.owner]

    def energy_kernels(self, slot: int) -> Tensor:
        """Kernels of all devices' energies [left after spending, next]; (device, energy, energy)."""
        return self.phase_kernels(int(self.harvest.law.phase_of_slot[slot]))

    def phase_kernels(self, phase: int) -> Tensor:
        """`energy_kernels` of a phase of the harvest law.

        Those of a law with many phases are made anew when asked for, so that weeks fit the memory.
        """
        kept, law = self._kept_kernels, self.harvest.law
        if phase in kept:
            return kept[phase]
        battery = self.battery.kernel(law, phase)  # (device, weather, left, next)
        joint = torch.einsum("dwln,wv->dwlvn", battery, law.kernel)  # filled by today's weather, which moves then
        found = joint.reshape(self.num_devices, self.num_energy, self.num_energy).to(self.dtype)
        if (len(kept) + 1) * found.nbytes <= _KEPT_KERNEL_BYTES:
            kept[phase] = found
        return found

    def initial_law(self, variable: Variable) -> Tensor:
        """Law of a state variable in the first slot."""
        if variable.kind == "site":
            return self.channel.stationary.to(self.dtype)
        return self.initial_energy_law[variable.owner]

    @cached_property
    def initial_energy_law(self) -> Tensor:
        """Law of every device's energy in the first slot; (device, energy)."""
        level = initial_level_law(self.scenario, self.battery).to(self.device, self.dtype)
        weather = self.harvest.law.stationary.to(level)
        return torch.einsum("w,db->dwb", weather, level).reshape(self.num_devices, -1)

    @cached_property
    def _kept_kernels(self) -> dict[int, Tensor]:
        """Kernels by phase, as far as they fit."""
        return {}

    @cached_property
    def energy_left(self) -> Tensor:
        """Energy state left after an action, at or below; (device, energy, action). Infeasible ones keep the state.

        What is left is that state by a share of 1 − overshoot and the next one up by a share of overshoot.
        """
        state = torch.arange(self.num_energy, device=self.device).reshape(1, -1, 1)
        return torch.where(self.feasible, state - self.actions.steps_up.unsqueeze(1), state)

    @cached_property
    def feasible(self) -> Tensor:
        """Whether an energy state pays for an action and the slot's drain; (device, energy, action)."""
        level = torch.arange(self.num_energy, device=self.device).reshape(1, -1, 1) % self.battery.levels
        return self.actions.needed_steps_up.unsqueeze(1) <= level

    @cached_property
    def dark(self) -> Tensor:
        """Whether an energy state does not pay for the slot's drain; (device, energy)."""
        level = torch.arange(self.num_energy, device=self.device) % self.battery.levels
        return self.battery.dark(level.unsqueeze(1) * self.battery.step_joule).T

    def affordable(self, battery_joule: Tensor) -> Tensor:
        """Whether stored energy pays for an action and the slot's drain; (..., device) → (..., device, action)."""
        return self.battery.affordable(battery_joule, self.actions.needed_joule)

    def site_of_neighbour(self, receiver: int) -> list[int]:
        """Sites of the links into a receiver, by neighbour."""
        return self.channel.site_of_edge[self.topology.edges_into(receiver)].tolist()

    def sites_into(self, receiver: int) -> tuple[int, ...]:
        """Sites of the links into a receiver, each once."""
        return tuple(dict.fromkeys(self.site_of_neighbour(receiver)))

    def heard_by(self, receiver: int) -> tuple[int, ...]:
        """Devices whose actions decide what a receiver gets: its neighbours, and itself under half duplex."""
        own = (receiver,) if self.link.half_duplex else ()
        return (*self.topology.neighbours[receiver], *own)

    @cached_property
    def colour(self) -> tuple[int, ...]:
        """A colour per device such that devices of one colour share no receiver: they may change at once."""
        return coloured(self.num_devices, map(self.heard_by, range(self.num_devices)))

    def part_of(self, device: int) -> Part:
        """The independent part that decides about a device."""
        return next(part for part in self.parts if device in part.devices)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Independent parts: connected components of "some receiver depends on both".

        Under full duplex a bipartite network falls into two: who transmits to whom.
        """
        graph: nx.Graph[tuple[str, int]] = nx.Graph()
        graph.add_nodes_from(("energy", j) for j in range(self.num_devices))
        for receiver in range(self.num_devices):
            if self.topology.neighbours[receiver]:
                node = ("receiver", receiver)
                graph.add_edges_from((node, ("energy", j)) for j in self.heard_by(receiver))
                graph.add_edges_from((node, ("site", s)) for s in self.sites_into(receiver))
        found, kinds = nx.connected_components(graph), ("energy", "site", "receiver")
        return tuple(Part(*(tuple(sorted(i for k, i in nodes if k == kind)) for kind in kinds)) for nodes in found)

    def scarcity(self) -> Tensor:
        """Mean stored harvest over what the costliest action needs, E[u] / (e_cmp + p_max τ) if ideal; (device,)."""
        stored = self.battery.losses.charge_efficiency * self.harvest.law.mean_joule()
        return stored / self.actions.needed_joule.max(dim=1).values

    @cached_property
    def edge_gain(self) -> NDArray[np.float64]:
        """Path gains, to ten digits: they are computed, so equal ones may differ in the last; (edge,)."""
        different, which = np.unique(self.link.path_gain.cpu().numpy(), return_inverse=True)
        return np.array([float(f"{gain:.9e}") for gain in different.tolist()])[which]

    @cached_property
    def device_kind(self) -> NDArray[np.int64]:
        """Numbers of the devices' kinds: equal where their energy and idling are alike; (device,)."""
        stored = self.battery.losses.charge_efficiency * self.harvest.law.scale
        heard = np.bincount(self.topology.edge_sender, minlength=self.num_devices)
        whole, rest = self.battery.kept_steps()
        tables = (
            (stored / self.battery.step_joule).unsqueeze(1),
            torch.from_numpy(np.stack([heard, self.topology.self_weight], 1)),
            self.actions.steps_up,
            self.actions.needed_steps_up,
            whole + rest,
            self.wide.initial_energy_law,
        )
        columns = np.concatenate([table.cpu().numpy().astype(np.float64) for table in tables], 1)
        differing = columns[:, (columns != columns[:1]).any(0)]
        return np.unique(differing, axis=0, return_inverse=True)[1].reshape(-1)

    @cached_property
    def deaf(self) -> Tensor:
        """Links that lose practically every packet at best; (edge,) bool.

        At best is: at the largest power, on the best channel level, without interference.
        """
        receiver = torch.from_numpy(self.topology.edge_receiver).to(self.device)
        signal = self.actions.power_watt.max() * self.channel.gain.max() * self.link.path_gain
        return self.link.packet_error(signal, self.link.noise_watt[receiver]) > _DEAF

    @cached_property
    def remembered(self) -> dict[str, float]:
        """Numbers that belong to the problem and are computed once, such as its lower bound."""
        return {}

    @cached_property
    def grid_is_exact(self) -> bool:
        """Whether batteries never leave the planning grid, so that plans and simulation share one process."""
        law = self.harvest.law
        losses = self.battery.losses
        harvests = law.joule.reshape(1, -1) * (losses.charge_efficiency * law.scale).unsqueeze(1)
        first = self.battery.capacity_joule / max(self.scenario.energy.start_points - 1, 1)  # and its multiples
        energies = (self.actions.spent_joule, harvests, first, losses.drain_joule)
        keeps_all = bool((losses.kept_share(self.battery.capacity_joule) == 1).all())
        aligned = all(map(self.battery.aligned, energies)) and keeps_all
        return aligned and self.scenario.energy.initial == "uniform-grid" and self.battery.levels > 1

    @cached_property
    def law_is_simulated(self) -> bool:
        """Whether the simulator draws harvests from the very law that planners use.

        It does not for random replays, and not under clouds that plans do not know of.
        """
        random = isinstance(self.harvest, HarvestReplay) and self.harvest.fixed_start is None
        return self.harvest.law.clouds is None and not random

    @property
    def devices_are_independent(self) -> bool:
        """Whether devices share no weather, so that batteries of devices that act alone are independent."""
        return self.harvest.law.sky == "independent"

    def rounding_excess(self) -> float:
        """Largest relative amount by which the grid rounds an affordable action's spending up; 0 where none is."""
        spent, steps_up = self.actions.spent_joule, self.actions.steps_up
        affordable = (spent > 0) & (steps_up < self.battery.levels)
        if not bool(affordable.any()):
            return 0.0
        rounded = steps_up * self.battery.step_joule.unsqueeze(1)
        return float((rounded / spent.clamp_min(1e-300) - 1)[affordable].max())

    @cached_property
    def idle_cost(self) -> Tensor:
        """idle_penalty · a_jj where an action does not train; (device, action)."""
        own = torch.from_numpy(self.topology.self_weight).to(self.device, self.dtype)
        return self.scenario.cost.idle_penalty * torch.outer(own, (~self.actions.trained).to(self.dtype))

    @cached_property
    def consumption(self) -> Consumption:
        """What devices draw from storage."""
        return with_tensors(consumption(self.scenario), lambda tensor: tensor.to(self.device))

    @cached_property
    def compute_joule(self) -> Tensor:
        """Energy drawn for one slot's training per device [J]; (device,)."""
        return self.consumption.training_drawn_joule


def coloured(num_devices: int, crowds: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """A colour per device such that no two devices of a crowd have the same.

    Greedy: those with most conflicts first, each with the least colour that is free.
    """
    conflicts: list[set[int]] = [set() for _ in range(num_devices)]
    for crowd in crowds:
        for device in crowd:
            conflicts[device].update(set(crowd) - {device})
    colour = [-1] * num_devices  # none yet
    for device in sorted(range(num_devices), key=lambda one: len(conflicts[one]), reverse=True):
        taken = {colour[other] for other in conflicts[device]}
        colour[device] = next(free for free in count() if free not in taken)
    return tuple(colour)


@checked
def build(scenario: Scenario, device: str = "cpu", dtype: str = "float64") -> Problem:
    """Build and check everything physical.

    Parameters
    ----------
    scenario
        Every input, as `Scenario.load` gives it.
    device
        Where tables live: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    dtype
        Numbers of the planners' tables: ``"float64"`` or ``"float32"``.

    Returns
    -------
    Problem
        Graph, channel, harvest, battery, radio and actions; what planners and simulations take.

    Raises
    ------
    ScenarioError
        With the path of the field that is wrong.
    """
    place, numbers = torch_device(device), {"float64": torch.float64, "float32": torch.float32}
    refuse(dtype not in numbers, "dtype", " or ".join(numbers), f"value {dtype!r}")
    topology = build_topology(scenario)
    channel, link = build_channel(scenario, topology), build_link(scenario, topology)
    gain = float(channel.gain.max()) * float(link.path_gain.max()) if len(link.path_gain) else 0.0
    received = max(scenario.energy.powers_watt) * gain  # whose sums and ratios must be numbers
    expected = f"gains and powers that give at most {MOST_WATT:g} W"
    refuse(not received <= MOST_WATT, "channel.gain", expected, f"value {received:g}")
    check_slot(scenario, transmit_second(scenario))
    power, trained, spent = action_energies(scenario)
    drain = consumption(scenario).drain_joule
    battery = build_battery(scenario, spent, build_losses(scenario, drain))
    needed = torch.cat([spent[:, :1], spent[:, 1:] + drain.unsqueeze(1)], 1)  # a dark device idles
    return Problem(
        scenario=scenario,
        topology=topology,
        channel=with_tensors(channel, lambda tensor: tensor.to(place)),
        harvest=with_tensors(build_harvest(scenario), lambda tensor: tensor.to(place)),
        battery=with_tensors(battery, lambda tensor: tensor.to(place)),
        link=with_tensors(link, lambda tensor: tensor.to(place)),
        actions=with_tensors(actions_on(battery, power, trained, spent, needed), lambda tensor: tensor.to(place)),
        dtype=numbers[dtype],
        device=place,
    )


def built_like(problem: Problem, scenario: Scenario) -> Problem:
    """The problem of another scenario, with tables in the same place and numbers."""
    return build(scenario, str(problem.device), str(problem.dtype).removeprefix("torch."))


def with_levels(problem: Problem, levels: int | None) -> Problem:
    """The problem on a grid of so many levels that rounds spending up least; as it is for None."""
    if levels is None:
        return problem
    return with_battery(problem, aligned_battery(problem.battery, problem.actions.spent_joule, levels, levels))


def around_cycle(problem: Problem, slots: int) -> Problem:
    """The problem of so many slots whose first follows the last; laws must come again after them.

    Clouds that plans do not know of are left out.
    """
    law, period = problem.harvest.law, problem.harvest.law.period
    if period is not None and period > len(law.phase_of_slot):  # the source has told a part only
        whole = build_harvest(problem.scenario.model_copy(update={"slots": period}))
        law = replace(with_tensors(whole, lambda tensor: tensor.to(problem.device)).law, scale=law.scale)
    law = replace(law, phase_of_slot=np.resize(law.phase_of_slot[:period], slots), clouds=None)
    return replace(problem, harvest=with_law(problem.harvest, law), cycle_slots=slots)


def interpolated(problem: Problem, levels: int) -> Problem:
    """The problem on a grid between whose points values are interpolated: spending is not rounded."""
    return with_battery(problem, problem.battery.on_grid(levels, "mean"))


def with_battery(problem: Problem, battery: Battery) -> Problem:
    """The problem with another battery grid."""
    own = problem.actions
    on_grid = actions_on(battery, own.power_watt, own.trained, own.spent_joule, own.needed_joule)
    return replace(problem, battery=battery, actions=on_grid)


COARSE = 0.35  # rounding of spending beyond which plans visibly suffer
_LOOK_AHEAD_SLOTS = 200  # of Algorithm 1 without an end; devices that plan by messages cannot tell when all are done
_KEPT_KERNEL_BYTES = 1 << 29
_DEAF = 0.999  # least error rate of a link that counts as deaf


def torch_device(device: str) -> torch.device:
    """Where tables live; CUDA is asked for its devices only if it is wanted, since asking takes time."""
    if device == "cpu":
        return torch.device(device)
    count = torch.cuda.device_count()
    if count and device in ("cuda", *(f"cuda:{index}" for index in range(count))):
        return torch.device(device)
    present = "cpu or cuda" if count else "cpu (no CUDA device is present)"
    raise ScenarioError("device", present, f"value {device!r}")
