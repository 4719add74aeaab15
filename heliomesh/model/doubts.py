"""What is valid but probably not meant: numbers of a scenario that no such network has, in one sentence each.

A unit that was mistaken, such as mW for W or m² for cm², shows in a few ratios: how many packets a day's harvest pays
for, how long a slot lasts, how strongly a radio sends.
"""

from heliomesh.model.problem import COARSE, Problem

_RADIATED_WATT = 10.0  # radios of battery-powered devices radiate less
_LONG_SLOT_SECOND = 6 * 3600.0  # so long a slot holds day and night
_MOST_PLENTY = 100.0  # of the dearest action, in every slot: energy is then no matter


def doubts(problem: Problem) -> list[str]:
    """Sentences on what looks wrong; none where everything is plausible."""
    actions, energy = problem.actions, problem.scenario.energy
    found, most = [], float(actions.power_watt.max())
    deaf, links = int(problem.deaf.sum()), problem.topology.num_edges
    if deaf and most > 0:
        where = "any link" if deaf == links else f"{deaf} of {links} links"
        found.append(
            f"no packet can arrive on {where}: the noise drowns even the largest power on the best channel level; "
            f"lower link.noise_watt (now {float(problem.link.noise_watt.max()):.6g} W at most) or the losses of link "
            "and channel"
        )
    if energy.slot_second >= _LONG_SLOT_SECOND:
        found.append(
            f"energy.slot_second: a slot lasts {energy.slot_second / 3600:g} hours; day and night within it are one "
            "harvest, and batteries only matter from slot to slot"
        )
    if most > _RADIATED_WATT:
        found.append(
            f"energy.powers_watt: a device radiates {most:g} W, more than {_RADIATED_WATT:g} W; mW are not W"
        )
    if not bool((actions.needed_steps_up[:, actions.trained] < problem.battery.levels).any()):
        found.append("no device can ever afford to train; raise energy.capacity_joule or lower the energies")
    return [*found, *_energy_balance(problem)]


def _energy_balance(problem: Problem) -> list[str]:
    """What the harvest of a day, or of a shorter episode, pays for at the device that is best off."""
    stored = problem.battery.losses.charge_efficiency * problem.harvest.law.mean_joule()
    drain, actions = problem.battery.losses.drain_joule, problem.actions
    # a day, which a solar harvest may cut to a daily window, or an episode that is shorter
    first, end = getattr(problem.scenario.harvest, "hours", (0.0, 24.0))
    slots, span = (end - first) * 3600 / problem.scenario.energy.slot_second, "a day"
    if slots >= problem.slots:
        slots, span = problem.slots, f"an episode of {problem.slots} slots"
    if bool((drain > stored).all()):
        best = int((stored - drain).argmax())
        takes, stores = (slots * float(joule[best]) for joule in (drain, stored))
        return [f"{span} of standing by takes {takes:.3g} J, and its harvest stores {stores:.3g} J; {_CHECK}"]
    few = []
    for kind, active in (("packets", actions.power_watt > 0), ("slots of training", actions.trained)):
        cheapest = actions.spent_joule[:, active].amin(1) if bool(active.any()) else stored.new_zeros(1)
        number = float((slots * (stored - drain) / cheapest.clamp_min(_FREE)).max())
        few += [f"{number:.2g} {kind}"] if number < 1 and bool((cheapest > 0).all()) else []
    if few:
        return [f"the harvest of {span} pays for {' and '.join(few)}; {_CHECK}"]
    plenty = float((stored / actions.needed_joule.amax(1).clamp_min(_FREE)).min())
    if plenty > _MOST_PLENTY and float(actions.needed_joule.max()) > 0:
        return [f"the harvest of a slot pays for the dearest action {plenty:.3g} times; {_CHECK}"]
    return []


_FREE = 1e-300  # what costs nothing can be paid for without end
_CHECK = "check the powers [W], the panel [cm²] and the irradiance [W/m²]"


def remarks(problem: Problem) -> list[str]:
    """What is valid but probably not meant, or worth knowing of the grid and the data."""
    found = doubts(problem)
    if problem.scenario.energy.battery_levels is not None and problem.rounding_excess() > COARSE:
        found.append(
            f"energy.battery_levels rounds spending up by as much as {problem.rounding_excess():.0%} where "
            "planners do not interpolate; leave it out, and every planner chooses its own grid"
        )
    return [*found, *problem.harvest.law.remarks]
