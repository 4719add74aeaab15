"""`heliomesh size`: the smallest batteries and panels that meet a target, by a sweep over both."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

from heliomesh.commands import options as shared
from heliomesh.commands.facts import build_noted, show, table
from heliomesh.commands.options import flattened, option
from heliomesh.commands.terminal import note
from heliomesh.common.durable import write_text
from heliomesh.pages.sizing_words import border_notes, in_words
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.studies.sizing import EPISODES, MOST_DARK, BatteryPanel, Prices, Sizing, size

# options that the study takes as they are
_SAME = (
    *("target_loss", "target_accuracy", "most_dark", "by_slot", "planner"),
    *("episodes", "seed", "store", "device", "strategy"),
)


@dataclass(frozen=True)
class SizeOptions(shared.OutputOptions, shared.PlannerSettings):
    """What must be reached, with which parts, how pairs are measured, and what is printed of it."""

    target_loss: Annotated[float | None, option("Largest mean update loss per device and slot, 0 to 1.")] = None
    target_accuracy: Annotated[float | None, option("Least mean accuracy of the devices, 0 to 1.")] = None
    most_dark: Annotated[float, option("Largest mean share of device slots without standby power.")] = MOST_DARK
    by_slot: Annotated[int | None, option("When the accuracy counts; default: after the last slot.", min=1)] = None
    planner: shared.PlannerNameOption = "receiver"
    capacity: Annotated[str | None, option("In J, such as 1,2,4; default: ¼ to 4 times the scenario's.")] = None
    panel: Annotated[
        str | None,
        option("Panel areas in cm²; factors on a harvest without panel or on panels per device; default: likewise."),
    ] = None
    price_battery: Annotated[float | None, option("Price per joule of battery.")] = None
    price_panel: Annotated[float | None, option("Price per cm² of panel.")] = None
    episodes: Annotated[int | None, option("Of each pair; default: 16, or 5 to train in.", min=2, max=10**5)] = None
    seed: shared.SeedOption = 0
    store: shared.StoreOption = None
    device: shared.DeviceOption = "cpu"
    strategy: shared.StrategyOption = "auto"
    out: Annotated[Path | None, option("Draw the picture in this .svg.")] = None

    @property
    def prices(self) -> Prices | None:
        """Prices, if there are any."""
        battery, panel = self.price_battery, self.price_panel
        for flag, value in (("--price-battery", battery), ("--price-panel", panel)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ScenarioError(flag, "a number of at least 0", f"value {value:g}")
        return None if battery is None and panel is None else Prices(battery or 0.0, panel or 0.0)

    def measured(self, sizing: Sizing, base: Scenario) -> tuple[int, int]:
        """Episodes of a pair, and the slot after which an accuracy counts."""
        return self.episodes or EPISODES[sizing.target.measure], self.by_slot or base.slots


@flattened
def size_command(scenario: shared.ScenarioArgument, *, asked: SizeOptions) -> None:
    """Sweep battery capacity and panel area for the smallest pairs that meet a target."""
    prices, out = asked.prices, asked.out
    axes = {"capacity_joule": _numbers(asked.capacity, "--capacity"), "panel": _numbers(asked.panel, "--panel")}
    refuse(out is not None and out.suffix != ".svg", "--out", "a name that ends in .svg", f"value {str(out)!r}")
    shared.check_target(out)
    base = asked.scenario(scenario)
    build_noted(base)  # what it says holds for every pair
    own: dict[str, Any] = axes | {name: getattr(asked, name) for name in _SAME}
    sizing = size(base, **own, options=asked.of_planner, track=asked.track, notify=note)
    if out is not None:
        title = f"{base.name}: {sizing.target.measure} by battery and panel, planner {asked.planner}"
        from heliomesh.pages.contour import contour_svg  # matplotlib is slow to import

        write_text(out, contour_svg(sizing, title, prices))
    _check_reached(sizing)
    show(asked.as_json, _facts(sizing, base, asked), *_parts(sizing, base, asked), f"{out}: written" if out else None)


def _check_reached(sizing: Sizing) -> None:
    target = sizing.target
    if sizing.smallest:
        return
    if sizing.too_dark:
        pair = min(sizing.too_dark, key=lambda pair: sizing.found[pair].dark.mean)
        flag, wanted, least = "--most-dark", "a limit that some pair keeps", "the least dark"
        missed = f"{target.most_dark:g} is exceeded by all {len(sizing.too_dark)} that reach the target"
    else:
        pair, flag = sizing.best, f"--target-{target.measure.split()[-1]}"
        wanted, least = "a target that some pair reaches", "the best"
        missed = f"{target.value:g} is missed by all {len(sizing.axes.pairs)}"
    raise ScenarioError(flag, wanted, f"value {missed}, {least} being {in_words(sizing, pair)}")


def _numbers(text: str | None, flag: str) -> list[float] | None:
    try:
        return None if text is None else [float(word) for word in text.split(",")]
    except ValueError:
        raise ScenarioError(flag, "numbers with commas between", f"value {text!r}") from None


def _facts(sizing: Sizing, base: Scenario, asked: SizeOptions) -> dict[str, Any]:
    target, prices, (episodes, slot) = sizing.target, asked.prices, asked.measured(sizing, base)
    facts = {
        "scenario": base.name,
        "hash": base.content_hash[:12],
        "planner": asked.planner,
        "target": {"measure": target.measure, "value": target.value, "slot": slot},
        "most dark": target.most_dark,
        "episodes": episodes,
        "panel setting": sizing.axes.panel_field,
        "smallest": [_pair_facts(sizing, pair, prices) for pair in sizing.smallest],
        "tried": [_pair_facts(sizing, pair, prices) for pair in sorted(sizing.found)],
        "skipped": [_pair_facts(sizing, pair, prices) for pair in sorted(sizing.skipped)],
    }
    return facts if prices is None else facts | {"cheapest": _pair_facts(sizing, sizing.cheapest(prices), prices)}


def _pair_facts(sizing: Sizing, pair: BatteryPanel, prices: Prices | None) -> dict[str, Any]:
    facts: dict[str, Any] = {**pair._asdict(), "meets": sizing.meets(pair)}
    if pair in sizing.found:
        found = sizing.found[pair]
        facts |= {"mean": found.mean, "half_width": found.half_width, "dark": found.dark.mean}
    facts["border"] = sizing.axes.border(pair)
    return facts if prices is None else facts | {"price": sizing.axes.price(pair, prices)}


def _parts(sizing: Sizing, base: Scenario, asked: SizeOptions) -> Iterator[Table | str]:
    target, axes, prices, (episodes, slot) = sizing.target, sizing.axes, asked.prices, asked.measured(sizing, base)
    is_accuracy = target.measure == "accuracy"
    when, sign = (f"after {slot} slots", "at least") if is_accuracy else ("per device and slot", "at most")
    yield f"{base.name}, {asked.planner}: mean {target.measure} {when}, {episodes} episodes"
    yield table(
        [
            {axes.panel_unit: f"{panel:.4g}"}
            | {f"{joule:g} J": _marked(sizing, BatteryPanel(joule, panel)) for joule in axes.capacity_joule}
            for panel in reversed(axes.panel)
        ]
    )
    dark = f", d more than {100 * target.most_dark:g} % of device slots dark" if sizing.is_drained else ""
    yield f"+ meets the target at 95 % confidence, - does not, * smallest that meet it{dark}\n"
    yield f"Smallest pairs with {target.measure} {sign} {target.value:g} at 95 % confidence:"
    for pair in sizing.smallest:
        price = "" if prices is None else f", price {axes.price(pair, prices):g}"
        yield f"  {in_words(sizing, pair)}{price}"
    if prices is not None:
        yield f"Cheapest: {in_words(sizing, sizing.cheapest(prices))}"
    if sizing.skipped:
        number = f"{len(sizing.skipped)} of {len(axes.pairs)}"
        yield f"Pairs not tried: {number}, since a smaller one meets the target or a larger one does not."
    yield from (f"Note: {sentence}" for sentence in border_notes(sizing))
    if isinstance(base.energy.initial, str):
        yield (
            f"Note: batteries start filled at random (energy.initial = {base.energy.initial!r}), so larger ones hold "
            "more at first; --set energy.initial=0.0 starts them empty."
        )


def _marked(sizing: Sizing, pair: BatteryPanel) -> str:
    meets, dark = sizing.meets(pair), pair in sizing.too_dark
    mark = "*" if pair in sizing.smallest else "+" if meets else "d" if dark else "-"
    return f"{sizing.found[pair].mean:.3f} {mark}" if pair in sizing.found else f"not tried {mark}"
