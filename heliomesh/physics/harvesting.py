"""What every harvest source delivers: a finite law for planners, a sampled step for the simulator.

A source file in `physics/harvest/` turns its settings into one of the two classes here. Their ``law`` is the exact
face. The sampled face has a hidden state: ``start`` and ``following`` draw it from uniform numbers (..., device) and
(..., device, 2), ``weather`` is the part of it that devices see, and ``harvested`` the harvest [J] of a slot.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common import catalog
from heliomesh.physics.chain import Floats, borders, check_rows, draw, pick, stationary_law
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import HARVEST_CATALOG, variant
from heliomesh.scenario.section import MOST_JOULE

Integers = npt.NDArray[np.int64]
Sky = Literal["independent", "mixed", "common"]
Slots = int | range  # one slot, or several whose tensors have a leading slot axis before that of episodes

_MAX_ATOMS = 64


@dataclass(frozen=True)
class HarvestLaw:
    """Finite harvest law, by phase (time of day) and weather (a Markov state of each device).

    A device of scale s in weather w and phase f harvests ``s · joule[f, w, k]`` with probability ``prob[f, w, k]``,
    then its weather moves by ``kernel[now, next]``. Under an independent sky devices are so too; a mixed sky has one
    weather for all, and under a common one all draw the same k besides.
    """

    joule: Tensor  # (phase, weather, atom)
    prob: Tensor  # (phase, weather, atom)
    scale: Tensor  # (device,)
    kernel: Tensor  # (weather, weather)
    phase_of_slot: Integers  # (slot,)
    sky: Sky = "independent"
    clouds: Floats | None = None  # (slot,) factor on what is harvested that plans do not know of
    remarks: tuple[str, ...] = ()  # on the data, for users
    period: int | None = None  # slots after which phases come again; None: not known, or all slots have one phase

    @property
    def law(self) -> "HarvestLaw":
        """Itself: planner and simulator share this law."""
        return self

    @property
    def num_weather(self) -> int:
        """Number of weather levels."""
        return len(self.kernel)

    @property
    def num_states(self) -> int:
        """Number of hidden states: the weather levels."""
        return self.num_weather

    @property
    def stationary(self) -> Tensor:
        """Stationary law of the weather; (weather,)."""
        return torch.from_numpy(stationary_law(self.kernel.cpu().numpy())).to(self.kernel.device)

    def mean_joule(self) -> Tensor:
        """Mean harvest per slot over the horizon in stationary weather; (device,)."""
        by_phase = (self.joule * self.prob).sum(-1) @ self.stationary
        return self.scale * by_phase[torch.from_numpy(self.phase_of_slot).to(self.scale.device)].mean()

    def start(self, uniform: Tensor) -> Tensor:
        """Stationary weather."""
        return draw(self.stationary.expand(*uniform.shape, -1), _shared(uniform, self.sky != "independent"))

    def weather(self, state: Tensor) -> Tensor:
        """All of the hidden state is visible."""
        return state

    def step(self, slot: int, state: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Harvest [J] by the current weather, then the next weather."""
        return self.harvested(slot, state, uniform), self.following(state, uniform)

    def harvested(self, slot: Slots, state: Tensor, uniform: Tensor) -> Tensor:
        """Harvest [J] by the weather of a slot, or of several."""
        phase = in_slots(self.phase_of_slot, slot, state.device)
        atom = pick(self._borders[phase, state], _shared(uniform[..., 0], self.sky == "common"))
        return self.clouded(slot, self.scale * self.joule[phase, state, atom])

    def following(self, state: Tensor, uniform: Tensor) -> Tensor:
        """The next weather."""
        if self.num_weather == 1:
            return torch.zeros_like(state)
        return draw(self.kernel[state], _shared(uniform[..., 1], self.sky != "independent"))

    @cached_property
    def _borders(self) -> Tensor:
        """Borders between the atoms' shares; (phase, weather, atom − 1)."""
        return borders(self.prob)

    def clouded(self, slot: Slots, joule: Tensor) -> Tensor:
        """What is left of a harvest under the clouds that plans do not know of."""
        return joule if self.clouds is None else joule * in_slots(self.clouds, slot, joule.device)


@dataclass(frozen=True)
class HarvestReplay:
    """A recorded series replayed from each device's own starting point, or from a common one, and around its end.

    Planners see ``law``: with random starts the marginal of the series, with a fixed start the series itself.
    """

    series_joule: Tensor  # (sample,) per slot, before scaling
    law: HarvestLaw
    fixed_start: int | None

    @property
    def num_states(self) -> int:
        """Number of hidden states: the positions."""
        return len(self.series_joule)

    def start(self, uniform: Tensor) -> Tensor:
        """First position in the series."""
        length = len(self.series_joule)
        if self.fixed_start is not None:
            return torch.full_like(uniform, self.fixed_start % length, dtype=torch.long)
        return torch.floor(_shared(uniform, self.law.sky == "common") * length).long()

    def weather(self, state: Tensor) -> Tensor:
        """The position is hidden: devices see no weather."""
        return torch.zeros_like(state)

    def step(self, slot: int, state: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Harvest [J] at the current position, then the next position."""
        return self.harvested(slot, state, uniform), self.following(state, uniform)

    def harvested(self, slot: Slots, state: Tensor, uniform: Tensor) -> Tensor:
        """Harvest [J] at the position of a slot, or of several."""
        return self.law.clouded(slot, self.law.scale * self.series_joule[state])

    def following(self, state: Tensor, uniform: Tensor) -> Tensor:
        """The next position."""
        return (state + 1) % len(self.series_joule)


Harvest = HarvestLaw | HarvestReplay


def in_slots(by_slot: npt.NDArray[Any], slot: Slots, device: torch.device) -> Any:
    """The slot's entry of an array (slot,), or those of several slots; (slot, 1, 1)."""
    if isinstance(slot, int):
        return by_slot[slot].item()
    return torch.from_numpy(by_slot[slot.start : slot.stop]).to(device).reshape(-1, 1, 1)


def _shared(uniform: Tensor, whether: bool) -> Tensor:
    """Uniform numbers (..., device), or those of the first device for all."""
    return uniform[..., :1].expand_as(uniform) if whether else uniform


def under_clouds(harvest: Harvest, events: tuple[tuple[int, int, float], ...], known: bool) -> Harvest:
    """The same harvest with clouds over all devices: [first slot, slots, factor] each; factors of a slot multiply.

    Known clouds are in the law, unknown ones only in what is harvested.
    """
    law = harvest.law
    factor = np.ones(len(law.phase_of_slot))
    for first, slots, share in events:
        factor[first : first + slots] *= share
    if not known:
        return with_law(harvest, replace(law, clouds=factor))
    # a replay is not drawn from its law: it has its clouds besides
    clouds = factor if isinstance(harvest, HarvestReplay) else None
    return with_law(harvest, replace(_dimmed(law, factor), clouds=clouds))


def under_known_clouds(law: HarvestLaw) -> HarvestLaw:
    """The law of what is harvested: with the clouds that plans do not know of."""
    return law if law.clouds is None else replace(_dimmed(law, law.clouds), clouds=None)


def _dimmed(law: HarvestLaw, factor: Floats) -> HarvestLaw:
    """The law with harvests times a factor by slot; a phase for each pair of phase and factor."""
    pairs, phase_of_slot = np.unique(np.stack([law.phase_of_slot, factor]), axis=1, return_inverse=True)
    phase = torch.from_numpy(pairs[0].astype(np.int64)).to(law.joule.device)
    share = torch.from_numpy(pairs[1]).to(law.joule)
    joule = law.joule[phase] * share.reshape(-1, 1, 1)
    phase_of_slot = phase_of_slot.ravel().astype(np.int64)
    return replace(law, joule=joule, prob=law.prob[phase], phase_of_slot=phase_of_slot, period=None)


def with_forecast(law: HarvestLaw, accuracy: float) -> HarvestLaw:
    """The law of devices that see the weather w and a forecast φ of the next one, as weather w · |w| + φ.

    A forecast is the next weather with probability ``accuracy`` and else any other, each equally likely. It tells of
    the next slot only, so (w, φ) is a Markov chain: w' follows given both, then φ' given w'.
    """
    weathers = law.num_weather
    wrong = (1 - accuracy) / max(weathers - 1, 1)
    tells = torch.full_like(law.kernel, wrong).fill_diagonal_(accuracy)  # [next, forecast]
    said = law.kernel @ tells  # [now, forecast]
    joint = law.kernel.unsqueeze(2) * tells  # [now, next, forecast]
    never = said.unsqueeze(1) <= 0  # a forecast that is never made: any row is a law
    given = torch.where(never, law.kernel.unsqueeze(2), joint / said.unsqueeze(1).clamp_min(1e-300))
    kernel = torch.einsum("wvf,vg->wfvg", given, said).reshape(weathers**2, weathers**2)
    joule, prob = (table.repeat_interleave(weathers, dim=1) for table in (law.joule, law.prob))
    return replace(law, joule=joule, prob=prob, kernel=kernel)


def rescaled(harvest: Harvest, factor: Tensor) -> Harvest:
    """The same weather on other panels: every harvest times ``factor`` (device,)."""
    return with_law(harvest, replace(harvest.law, scale=harvest.law.scale * factor))


def with_law(harvest: Harvest, law: HarvestLaw) -> Harvest:
    """The same harvest model with another law."""
    return law if isinstance(harvest, HarvestLaw) else replace(harvest, law=law)


def memoryless(joule: Floats, prob: Floats, scale: list[float], phase_of_slot: Integers) -> HarvestLaw:
    """Law without weather from arrays (phase, atom)."""
    return law_of(joule[:, None], prob[:, None], scale, np.ones((1, 1)), phase_of_slot)


def law_of(
    joule: Floats, prob: Floats, scale: list[float], kernel: npt.ArrayLike, phase_of_slot: Integers
) -> HarvestLaw:
    """Law from arrays (phase, weather, atom)."""
    atoms, shares, panels, moves = (
        torch.from_numpy(np.array(one, np.float64)) for one in (joule, prob, scale, kernel)
    )
    return HarvestLaw(atoms, shares, panels, moves, phase_of_slot)


def marginal_atoms(samples: Floats) -> tuple[Floats, Floats]:
    """Compress samples to at most 64 values with probabilities: means of equal shares of the sorted samples."""
    values, counts = np.unique(samples, return_counts=True)
    if len(values) <= _MAX_ATOMS:
        return values.astype(np.float64), counts / counts.sum()
    parts = np.array_split(np.sort(samples), _MAX_ATOMS)
    return np.array([part.mean() for part in parts]), np.array([len(part) for part in parts]) / len(samples)


def replay(
    series_joule: Floats, scale: list[float], slots: int, start: int | None, remarks: tuple[str, ...] = ()
) -> HarvestReplay:
    """Replay of a series [J per slot] from a fixed or, with None, a random start per device."""
    if start is None:
        joule, prob = marginal_atoms(series_joule)
        law = memoryless(joule[None], prob[None], scale, np.zeros(slots, dtype=np.int64))
    else:
        positions = (start + np.arange(slots)) % len(series_joule)
        values, phase_of_slot = np.unique(series_joule[positions], return_inverse=True)  # all of the night is one
        law = memoryless(values[:, None], np.ones((len(values), 1)), scale, phase_of_slot.astype(np.int64))
        law = replace(law, period=len(series_joule))  # it is replayed around its end
    return HarvestReplay(torch.from_numpy(series_joule), replace(law, remarks=remarks), start)


def build_harvest(scenario: Scenario) -> Harvest:
    """The source's harvest under the scenario's sky, with its forecast and its clouds; raises ScenarioError."""
    settings: Any = scenario.harvest
    source = variant(HARVEST_CATALOG, settings.source, "harvest.source")
    harvest = _checked(catalog.function(source, "build")(settings, scenario))
    sky: Sky = getattr(settings, "sky", "independent")
    accuracy: float | None = getattr(settings, "forecast", None)
    if sky == "mixed" and isinstance(harvest, HarvestReplay):
        raise ScenarioError("harvest.sky", "independent or common for a replayed series", "'mixed'")
    if accuracy is not None and harvest.law.num_weather == 1:
        raise ScenarioError("harvest.forecast", "a source with weather, such as markov", f"value {accuracy:g}")
    if accuracy is not None:
        harvest = with_law(harvest, with_forecast(harvest.law, accuracy))
    if sky != "independent":
        harvest = with_law(harvest, replace(harvest.law, sky=sky))
    cloudy: tuple[tuple[int, int, float], ...] | None = getattr(settings, "cloudy", None)
    return harvest if cloudy is None else under_clouds(harvest, cloudy, bool(settings.cloudy_known))


def _checked(harvest: Harvest) -> Harvest:
    """Refuse a source whose law is none: a file of the user's own may have any fault."""
    law = getattr(harvest, "law", None)
    if not isinstance(law, HarvestLaw):
        raise ScenarioError("harvest.source", "build to return a HarvestLaw or HarvestReplay", f"{harvest!r:.60}")
    for name, table in (("prob", law.prob), ("kernel", law.kernel)):
        check_rows("harvest.source", name, table.numpy())
    lowest = float((law.joule * law.scale.min()).min())
    if not lowest >= 0 or not bool(law.joule.isfinite().all()):
        raise ScenarioError("harvest.source", "finite harvests of at least 0 J", f"value {lowest:g}")
    highest = float(law.joule.max()) * float(law.scale.max())
    refuse(not highest <= MOST_JOULE, "harvest.source", f"harvests of at most {MOST_JOULE:g} J", f"value {highest:g}")
    return harvest
