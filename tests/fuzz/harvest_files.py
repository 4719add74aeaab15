"""Files of harvests: a series of joules, and irradiance in several formats."""

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


def sun(rng: Rng, originals: Path, place: Path) -> list[str]:
    """A table of times and irradiance, or an NSRDB file of the same sun, with settings of time that may not fit."""
    times = [(day, hour) for day in (1, 2, 3) for hour in range(24)]
    bright = [max(0.0, 800 - 22 * (hour - 12) ** 2) * rng.uniform(0.3, 1) for _, hour in times]
    rows = [f"2023-06-{day:02d}T{hour:02d}:00,{ghi:.1f}" for (day, hour), ghi in zip(times, bright, strict=True)]
    if rng.random() < 0.4:
        head = "Source,Location ID,Latitude,Longitude,Time Zone,Elevation,Local Time Zone\nNSRDB,1,40,-105,-7,9,-7"
        rows = [f"2023,6,{day},{hour},30,{ghi:.1f}" for (day, hour), ghi in zip(times, bright, strict=True)]
        rows = [head, "Year,Month,Day,Hour,Minute,GHI", *rows]
    settings = [
        f"law = '{['trace', 'time-of-day', 'iid', 'weather'][rng.integers(4)]}'",
        f"hours = {[[0.0, 24.0], [6.0, 18.0], [6.3, 6.4]][rng.integers(3)]}",
        f"timezone = '{['UTC', 'America/Denver', 'Etc/GMT+7', 'x'][rng.integers(4)]}'",
        f"start = '{['06-02', '12:00', '2023-06-03T07:00', '99-99'][rng.integers(4)]}'",
        f"time_label = '{['begin', 'middle', 'end'][rng.integers(3)]}'",
        f"format = '{['csv', 'tmy3', 'nsrdb', 'pvgis', 'midc'][rng.integers(5)]}'",
        f"cloudy = [[{rng.integers(0, 4)}, {rng.integers(0, 4)}, {rng.uniform(-0.2, 1.1):.2f}]]",
    ]
    kept = [line for line in settings if rng.random() < 0.35]
    content = "\n".join(rows)
    spoiled = spoiled_text(rng, content) if rng.random() < 0.4 else content.encode()
    return _scenario(rng, place, "\n".join(["source = 'solar'\ndata = 'file'", *kept]), spoiled)


def _scenario(rng: Rng, place: Path, harvest: str, content: bytes) -> list[str]:
    (place / "harvest.txt").write_bytes(content)
    file = place / "scenario.toml"
    file.write_text(
        f"slots = 3\n[network]\ndevices = 2\n[harvest]\n{harvest}\nfile = 'harvest.txt'\n", encoding="utf-8"
    )
    if rng.random() < 0.5:
        return ["scenario", "validate", str(file)]
    return ["simulate", str(file), "uncoordinated", "--episodes", "2", "--json"]
