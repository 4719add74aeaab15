"""Flash and RAM of exported plans on Cortex-M0, AVR and RISC-V: the example program of the largest device.

Tables are the plan's constants; flash is the whole program with start-up code, and RAM its variables. The stack is
what the program used in an emulator, without the board's own functions. Prints a Markdown table. Needs the cross
compilers, qemu and simavr that `make firmware` installs; targets whose tools are missing are left out.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import heliomesh as hm
from heliomesh.interop.c_bids import BidHeader, write_bid_headers
from heliomesh.interop.c_header import Header, write_headers
from heliomesh.interop.c_kit import flash_bytes
from heliomesh.interop.export_tables import tabulate
from heliomesh.planners.bids import Bidders
from tests.interop.c_network import ATMEGA328P, ATMEGA2560, CORTEX_M0, RISCV32, SOURCES, Target, compiled, emulated

TARGETS = (CORTEX_M0, RISCV32, ATMEGA328P, ATMEGA2560)
SMALL = ("-Os", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections")
BIDS = {"energy.actions": "separate", "learning.dataset": "digits"}  # of ten classes
EIGHT = {"network.topology": "regular", "network.degree": 8}
CASES: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "`uncoordinated`": ("uncoordinated", {}, {}),
    "`prices`, `coordinate=false`": ("prices", {}, {"coordinate": False, "interpolate": False}),
    "`decentralized`, hops = 2, `energy.battery_levels=5`": (
        "decentralized",
        {"energy.battery_levels": 5},
        {"hops": 2},
    ),
    "`bids`": ("bids", BIDS, {}),
    "`bids`, eight neighbours": ("bids", BIDS | EIGHT, {}),
}


def exported(case: str, scenario: str, folder: Path) -> Header | BidHeader:
    """Write a kit; the table file of the largest device."""
    planner, changes, options = CASES[case]
    problem = hm.build(hm.Scenario.load(scenario).override(changes))
    made = hm.plan(problem, planner, bound=False, **options)
    tables: list[Header] | list[BidHeader]
    if isinstance(made.policy, Bidders):
        tables, _ = write_bid_headers(made.policy, folder)
    else:
        tables, _ = write_headers(tabulate(made), made.policy.problem, folder)
    return max(tables, key=flash_bytes)


def linked(folder: Path, target: Target, number: int, main_source: Path) -> Path:
    """The example's program, or one around it."""
    program = folder / "example.elf"
    every = [main_source, "example_board.c", "heliomesh_device.c", "heliomesh_levels.c", SOURCES / target.source]
    device = f"-DHELIOMESH_DEVICE={number}"
    compiled(folder, target, *SMALL, device, *target.linking, *every, *target.libraries, "-o", program)
    return program


def sizes(target: Target, program: Path) -> tuple[int, int]:
    """Bytes of flash and of RAM."""
    command = [f"{target.prefix}size", program]
    told = subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout  # noqa: S603
    text, data, bss = map(int, told.splitlines()[1].split()[:3])
    return text + data, data + bss


def row(case: str, folder: Path, target: Target, tables: Header | BidHeader) -> str:
    """One line of the table."""
    start = f"| {case} | {target.name} | {flash_bytes(tables):,} B |"
    try:
        flash, ram = sizes(target, linked(folder, target, tables.number, folder / "example_main.c"))
        stack = int(emulated(target, linked(folder, target, tables.number, SOURCES / "stack.c")), 16)
    except AssertionError as error:
        if "larger than the flash" in str(error) or "will not fit" in str(error):
            return f"{start} does not fit | | |"
        raise
    return f"{start} {flash:,} B | {ram:,} B | {stack:,} B |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--scenario", default="ring10")
    options = parser.parse_args()
    for target in TARGETS:
        if target.missing:
            print(f"{target.name}: not installed: {', '.join(target.missing)}")
    print("| plan | processor | tables | flash | RAM | stack |")
    print("|---|---|---|---|---|---|", flush=True)
    for case in options.cases:
        with tempfile.TemporaryDirectory() as name:
            tables = exported(case, options.scenario, Path(name))
            for target in TARGETS:
                if not target.missing:
                    print(row(case, Path(name), target, tables), flush=True)


if __name__ == "__main__":
    main()
