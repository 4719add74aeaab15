"""Files of harvests: a series of joules, and irradiance as MIDC stations write it."""

from pathlib import Path

from tests.fuzz.mutation import Rng, spoiled_text, value


def series(rng: Rng, originals: Path, place: Path) -> list[str]:
    """A text file with one number per line."""
    numbers = "\n".join(f"{number:.4g}" for number in rng.exponential(1.0, int(rng.integers(1, 30))))
    if rng.random() < 0.3:
        numbers = "\n".join(str(value(rng)) for _ in range(rng.integers(1, 6)))
    return _scenario(rng, place, "source = 'trace'", spoiled_text(rng, numbers))


def irradiance(rng: Rng, originals: Path, place: Path) -> list[str]:
    """A table of dates, times and irradiance."""
    lines = ["DATE (MM/DD/YYYY),MST,Global PSP [W/m^2],Direct [W/m^2]"]
    step_minute = int(rng.choice([1, 15, 60]))
    for number in range(int(rng.integers(1, 40))):
        minute = 360 + number * step_minute
        clock = f"{minute // 60 % 24:02d}:{minute % 60:02d}"
        lines.append(f"6/{1 + minute // 1440}/2023,{clock},{rng.uniform(-5, 900):.2f},{rng.uniform(0, 500):.2f}")
    law = ["trace", "time-of-day", "iid"][rng.integers(3)]
    content = "\n".join(lines)
    if rng.random() < 0.2:
        cells = content.split(",")
        cells[rng.integers(len(cells))] = str(value(rng))
        content = ",".join(cells)
    return _scenario(rng, place, f"source = 'solar'\ndata = 'midc-file'\nlaw = '{law}'", spoiled_text(rng, content))


def _scenario(rng: Rng, place: Path, harvest: str, content: bytes) -> list[str]:
    (place / "harvest.txt").write_bytes(content)
    file = place / "scenario.toml"
    file.write_text(
        f"slots = 3\n[network]\ndevices = 2\n[harvest]\n{harvest}\nfile = 'harvest.txt'\n", encoding="utf-8"
    )
    if rng.random() < 0.5:
        return ["scenario", "validate", str(file)]
    return ["simulate", str(file), "uncoordinated", "--episodes", "2", "--json"]
