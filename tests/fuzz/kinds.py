"""All kinds of input, each with its share of a campaign."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import dataset_files, harvest_files, place_files, run_folders, scenarios
from tests.fuzz.mutation import Rng

Work = list[str] | Callable[[], object]  # a command line, or a function


@dataclass(frozen=True)
class Kind:
    """``make(rng, originals, place)`` writes one input into the empty folder ``place`` and says what reads it."""

    name: str
    make: Callable[[Rng, Path, Path], Work]
    share: float  # of all inputs


KINDS = (
    Kind("scenario file", scenarios.scenario_file, 0.25),
    Kind("--set", scenarios.override, 0.20),
    Kind("planner option", scenarios.option, 0.05),
    Kind("harvest series", harvest_files.series, 0.07),
    Kind("irradiance file", harvest_files.irradiance, 0.04),
    Kind("sun of some days", harvest_files.sun, 0.03),
    Kind("file of places", place_files.places, 0.03),
    Kind("run folder", run_folders.run_folder, 0.07),
    Kind("checkpoint", run_folders.checkpoint, 0.04),
    Kind("trace", run_folders.trace_file, 0.05),
    Kind("stored result", run_folders.stored_result, 0.03),
    Kind("own arrays", dataset_files.own_arrays, 0.05),
    Kind("image folder", dataset_files.image_folder, 0.03),
    Kind("gzipped idx files", dataset_files.packed_idx, 0.03),
    Kind("archive", dataset_files.archive, 0.03),
)
