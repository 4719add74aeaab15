"""Local SGD of many devices: every strategy against a plain Python loop over `nn.Module` and `torch.optim.SGD`.

One slot is K = 5 steps of batch 32 for all devices: forward, backward and update. Prints a Markdown table with what
the device achieves beside what it can do, and last the headline figure. Arithmetic is 2 · 3 operations for each
multiply-add of the forward pass. Bytes are those of a plain execution: weights read, read again and written in every
step, and every layer's output written and read, going forward and back; a strategy that merges layers moves fewer.
On a CPU all take turns, try by try, because other programs run beside; the headline is the median over tries.

    python benchmarks/learning_speed.py --device cuda --model cnn --devices 100 --precision bf16
    python benchmarks/learning_speed.py --device cuda --model resnet18 --devices 20 --precision bf16
    python benchmarks/learning_speed.py --device cpu --devices 10
    OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 python benchmarks/learning_speed.py --core-time --devices 1 --tries 20
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from heliomesh.learning.stacked import Samples, flat_weights, layout_of
from heliomesh.learning.strategy import Chosen, choose, new_weights
from heliomesh.scenario.errors import ScenarioError
from heliomesh.tasks.model import build_model

STEPS, BATCH, SAMPLES, RATE = 5, 32, 2000, 0.01
SHAPES = {"cnn": (1, 28, 28), "resnet18": (3, 32, 32), "mlp": (1, 8, 8)}
PRODUCT_SIDE, PRODUCTS = 1024, 20  # matrices multiplied to see what a processor can do
LOOPED = 100  # devices of the plain loop at most; more are scaled, for their time is proportional
ON_CUDA = ["fused", "vmap"]
ON_CPU = ["auto", "loop", "vmap"]
PLAIN, PRODUCT = "plain loop, float32 as PyTorch sets it", "matrix products of 1024 × 1024, on all threads"


@dataclass(frozen=True)
class Task:
    """A model, its data and who trains."""

    model: nn.Module
    samples: Samples
    batches: torch.Tensor  # (device, K, batch)
    device: torch.device


def task(options: argparse.Namespace) -> Task:
    """Random images: speed does not depend on what they show."""
    device, shape = torch.device(options.device), SHAPES[options.model]
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (SAMPLES,), generator=generator)
    means = torch.randn(10, *shape, generator=generator)
    inputs = means[labels] + torch.randn(SAMPLES, *shape, generator=generator)
    batches = torch.randint(0, SAMPLES, (options.devices, STEPS, BATCH), generator=generator)
    model = build_model(options.model, shape, 10, 0).to(device)
    return Task(model, Samples(inputs.to(device), labels.to(device)), batches.to(device), device)


def cost(work: Task, half: bool) -> tuple[float, float]:
    """Operations and bytes of one device's slot."""
    products, outputs = 0, 0

    def count(layer: nn.Module, _: Any, output: torch.Tensor) -> None:
        nonlocal products, outputs
        if isinstance(layer, nn.Conv2d | nn.Linear):
            weight = layer.weight
            products += output[0].numel() * weight[0].numel()
        outputs += output[0].numel()

    model = copy.deepcopy(work.model)
    for layer in model.modules():
        if not list(layer.children()):
            layer.register_forward_hook(count)
    with torch.no_grad():
        model(work.samples.inputs[:1])
    weights = 3 * 4 * layout_of(work.model).num_parameters
    activations = 4 * BATCH * outputs * (2 if half else 4)
    return 6.0 * STEPS * BATCH * products, float(STEPS * (weights + activations))


def seconds(slot: Callable[[], None], device: torch.device, tries: int) -> float:
    """The shortest of several tries, after two to warm up."""
    taken = []
    for _ in range(tries + 2):
        synchronize(device)
        start = time.perf_counter()
        slot()
        synchronize(device)
        taken.append(time.perf_counter() - start)
    return min(taken[2:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def plain_loop(work: Task) -> Callable[[], None]:
    """What one writes first: a module and an optimizer for each device."""
    devices = min(len(work.batches), LOOPED)
    models = [copy.deepcopy(work.model) for _ in range(devices)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=RATE) for model in models]

    def slot() -> None:
        for model, optimizer, batches in zip(models, optimizers, work.batches, strict=False):
            for batch in batches:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(work.samples.inputs[batch]), work.samples.labels[batch])
                loss.backward()
                optimizer.step()

    return slot


def stacked(work: Task, chosen: Chosen, weights: torch.Tensor, active: int) -> Callable[[], None]:
    """A slot of the first ``active`` devices."""
    rows = torch.arange(active, device=weights.device)

    def slot() -> None:
        chosen.train(weights, rows, work.batches[:active], work.samples, RATE)

    return slot


def fresh_weights(work: Task) -> torch.Tensor:
    """The model's own, for all devices."""
    own = flat_weights(work.model)
    weights = new_weights(len(work.batches), len(own), work.device)
    return weights.copy_(own.expand(weights.shape))


def ceilings(device: torch.device) -> tuple[float, float]:
    """Operations of bfloat16 products and bytes of copies [1/s] that a CUDA device reaches."""
    size, words = 8192, 2**30
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    matmul = seconds(lambda: [a @ b for _ in range(10)] and None, device, 3) / 10
    source = torch.empty(words, device=device)
    target = torch.empty_like(source)
    copied = seconds(lambda: [target.copy_(source) for _ in range(5)] and None, device, 3) / 5
    return 2 * size**3 / matmul, 2 * 4 * words / copied


def table_row(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def measure(work: Task, name: str, options: argparse.Namespace, weights: torch.Tensor) -> tuple[float, Chosen] | None:
    """Seconds a slot; None and a line with the reason where the strategy cannot."""
    weights.copy_(flat_weights(work.model).expand(weights.shape))
    try:
        chosen = choose(work.model, work.samples, STEPS, BATCH, options.precision, name)
        return seconds(stacked(work, chosen, weights, len(work.batches)), work.device, options.tries), chosen
    except (ScenarioError, RuntimeError) as error:
        table_row([name, str(error).splitlines()[0][:100]])
        return None


def curves(work: Task, options: argparse.Namespace) -> str:
    """Mean loss of two devices before and after 20 slots, exact and as asked for."""
    text = []
    for precision, name in (("fp32", "loop"), (options.precision, "auto")):
        weights = fresh_weights(Task(work.model, work.samples, work.batches[:2], work.device))
        chosen = choose(work.model, work.samples, STEPS, BATCH, precision, name)
        rows = torch.arange(len(weights), device=weights.device)
        losses = [chosen.train(weights, rows, work.batches[:2], work.samples, RATE) for _ in range(20)]
        text.append(f"{precision} {float(losses[0].mean()):.4f} → {float(losses[-1].mean()):.4f}")
    return ", ".join(text)


def in_turns(
    slots: dict[str, Callable[[], None]], tries: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every slot in every try, by name: each try runs all of them, one after the other."""
    taken: dict[str, list[float]] = {name: [] for name in slots}
    for attempt in range(tries + 1):
        for name, slot in slots.items():
            start = clock()
            slot()
            if attempt:  # the first one warms up
                taken[name].append(clock() - start)
    return taken


def cpu_slots(work: Task, options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """The plain loop, all strategies, 40 % of the devices, and matrix products, each as something to time."""
    devices = len(work.batches)
    slots = {PLAIN: plain_loop(work)}
    for name in options.strategies or ON_CPU:
        chosen = choose(work.model, work.samples, STEPS, BATCH, options.precision, name)
        label = f"auto: {chosen.setting}" if name == "auto" else name
        slots[label] = stacked(work, chosen, fresh_weights(work), devices)
    chosen = choose(work.model, work.samples, STEPS, BATCH, options.precision)
    slots["auto, 40 % of the devices"] = stacked(work, chosen, fresh_weights(work), round(0.4 * devices))
    a, b = torch.randn(2, PRODUCT_SIDE, PRODUCT_SIDE)
    slots[PRODUCT] = lambda: [a @ b for _ in range(PRODUCTS)] and None
    return slots


def cpu_table(work: Task, options: argparse.Namespace) -> str:
    """Print a line for each strategy; returns the headline."""
    devices, (operations, moved) = len(work.batches), cost(work, half=False)
    taken = in_turns(cpu_slots(work, options), options.tries)
    scale = devices / min(devices, LOOPED)
    loop = min(taken[PLAIN]) * scale
    for name, seconds_of in taken.items():
        share = {PLAIN: 1 / scale, "auto, 40 % of the devices": round(0.4 * devices) / devices}.get(name, 1.0)
        best = min(seconds_of)
        work_of = (operations * devices * share, moved * devices * share)
        if name == PRODUCT:
            table_row([name, "", "", f"{2 * PRODUCTS * PRODUCT_SIDE**3 / best / 1e12:.3g}", ""])
        else:
            rates = [f"{work_of[0] / best / 1e12:.3g}", f"{work_of[1] / best / 1e9:.3g}"]
            table_row([name, f"{1000 * best:.0f}", f"{loop * share / best:.2f}", *rates])
    auto = next((name for name in taken if name.startswith("auto:")), PLAIN)
    against = median_ratio(taken[auto], taken[PLAIN]) / scale
    some = median_ratio(taken["auto, 40 % of the devices"], taken[auto])
    shortest = min(taken[auto]) / loop
    return (
        f"{options.model}, m = {devices}, {torch.get_num_threads()} threads: 40 % of the devices take {some:.2f} of "
        f"the time of all; {auto} takes {against:.2f} of the plain loop's time (shortest tries: {shortest:.2f})"
    )


def core_time(work: Task, options: argparse.Namespace) -> str:
    """The headline in time of cores, which does not count waiting for other programs.

    The plain loop has all threads, and this one's time counts: it does its share of every layer and all that is
    not shared. The automatic choice has one thread; devices that train side by side share its time.
    """
    threads, devices = torch.get_num_threads(), len(work.batches)
    chosen = choose(work.model, work.samples, STEPS, BATCH, options.precision)
    own = stacked(work, chosen, fresh_weights(work), devices)

    def alone() -> None:
        torch.set_num_threads(1)
        own()
        torch.set_num_threads(threads)

    taken = in_turns({PLAIN: plain_loop(work), "auto": alone}, options.tries, time.thread_time)
    plain, auto = (1000 * min(taken[name]) / devices / STEPS for name in (PLAIN, "auto"))
    return (
        f"{options.model}, {threads} cores: {chosen.setting} takes {auto:.1f} ms of one core a step, "
        f"{auto / threads:.1f} of each; the plain loop {plain:.1f} of each; ratio {auto / threads / plain:.2f}"
    )


def median_ratio(these: list[float], those: list[float]) -> float:
    """The median over tries of one time over another."""
    return statistics.median(one / other for one, other in zip(these, those, strict=True))


def cuda_table(work: Task, options: argparse.Namespace) -> str:
    """Print a line for each strategy; returns the headline."""
    operations, moved = cost(work, options.precision == "bf16")

    def line(name: str, taken: float, loop: float) -> None:
        rates = [operations * options.devices / taken / 1e12, moved * options.devices / taken / 1e9]
        table_row([name, f"{1000 * taken:.2f}", f"{loop / taken:.2f}", f"{rates[0]:.3g}", f"{rates[1]:.3g}"])

    looped = min(options.devices, LOOPED)
    loop = seconds(plain_loop(work), work.device, options.tries) * options.devices / looped
    scaled = "" if looped == options.devices else f" ({looped} devices, scaled)"
    line(f"{PLAIN}{scaled}", loop, loop)
    weights, best = fresh_weights(work), ("", loop)
    for name in options.strategies or ON_CUDA:
        result = measure(work, name, options, weights)
        if result is not None:
            taken, chosen = result
            label = f"auto: {chosen.setting}" if name == "auto" else name
            line(label, taken, loop)
            best = min(best, (label, taken), key=lambda pair: pair[1])
    products, copies = ceilings(work.device)
    table_row(["what the card can do", "", "", f"{products / 1e12:.0f}", f"{copies / 1e9:.0f}"])
    print(f"\nlargest memory {torch.cuda.max_memory_allocated(work.device) / 2**30:.1f} GiB")
    print(f"loss of two devices over 20 slots: {curves(work, options)}")
    rate = operations * options.devices / best[1] / 1e12
    return (
        f"{options.model}, m = {options.devices}: {best[0] or 'plain loop'} takes {1000 * best[1]:.2f} ms a slot, "
        f"{loop / best[1]:.1f} × the plain loop, {rate:.3g} TFLOP/s"
    )


def main() -> None:
    """Print the table, and the headline last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn", choices=sorted(SHAPES))
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--strategies", nargs="+", help="names; default: all that suit the device")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--core-time", action="store_true", help="of a CPU: leave out waiting for other programs")
    options = parser.parse_args()
    work = task(options)
    if options.core_time:
        print(core_time(work, options))
        return
    print(f"{options.model}, {options.devices} devices, K = {STEPS}, batch {BATCH}, {options.precision}:\n")
    table_row(["strategy", "ms a slot", "× the loop", "TFLOP/s", "GB/s"])
    table_row(["---"] * 5)
    headline = (cuda_table if work.device.type == "cuda" else cpu_table)(work, options)
    print(f"\n{headline}")


if __name__ == "__main__":
    main()
