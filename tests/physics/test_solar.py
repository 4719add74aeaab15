"""Solar harvest: data sources and laws against hand computation, bad inputs against their messages."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pvlib
import pytest
import requests
import torch

from heliomesh.physics.harvest import solar
from heliomesh.physics.harvesting import HarvestLaw, HarvestReplay
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario

HEADER = "DATE (MM/DD/YYYY),MST,Global CM3 (cor) [W/m^2]"
SHARED = Path(__file__).parents[3] / "shared/data/solar/nrel_midc_bms_2023-06_1min.txt"
FACTOR = 25e-4 * 0.2 * 4  # default panel [m²] × efficiency × slot [s]


def scenario_of(slots=200, energy=None, devices=10, **harvest):
    return Scenario.parse(
        {
            "slots": slots,
            "network": {"devices": devices},
            "energy": energy or {},
            "harvest": {"source": "solar", **harvest},
        }
    )


def build(**settings):
    scenario = scenario_of(**settings)
    return solar.build(scenario.harvest, scenario)


def refused(field, *parts, **settings):
    with pytest.raises(ScenarioError) as caught:
        build(**settings)
    assert caught.value.field == field
    for part in ("expected", "actual", *parts):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def midc(folder, ghi_by_hour, minutes=60, days=2, month=6, header=HEADER):
    """Write an MIDC file whose irradiance is a function of day and clock hour."""
    lines = [header]
    for day in range(1, days + 1):
        for minute in range(0, 24 * 60, minutes):
            value = ghi_by_hour(day, minute / 60)
            lines.append(f"{month}/{day}/2023,{minute // 60:02d}:{minute % 60:02d},{value}")
    return written(folder, "\n".join(lines))


def written(folder, text):
    file = folder / "midc.txt"
    file.write_text(text, encoding="utf-8")
    return {"data": "midc-file", "file": str(file)}


def ramp(day, hour):
    return 100 * day + 10 * hour


# data sources


def test_bundled_year_by_hand():
    file = Path(pvlib.__file__).parent / "data" / "723170TYA.CSV"
    table = pd.read_csv(file, skiprows=1)
    month = table.iloc[:, 0].str[:2].astype(int)
    hour_end = table.iloc[:, 1].str[:2].astype(int)
    june = table["GHI (W/m^2)"][(month == 6) & (hour_end > 6) & (hour_end <= 18)]
    assert len(june) == 30 * 12
    torch.testing.assert_close(build().mean_joule(), torch.full((10,), FACTOR * june.mean(), dtype=torch.float64))


def test_bundled_year_needs_no_network(monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("went online"))
    assert isinstance(build(), HarvestLaw)


def test_settings_do_not_import_pvlib():
    code = (
        "import sys; from heliomesh.scenario.scenario import Scenario;"
        "Scenario.parse({'harvest': {'source': 'solar'}}); assert 'pvlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own code


def test_solar_is_the_default_source_and_survives_a_round_trip():
    assert isinstance(Scenario.parse({}).harvest, solar.Settings)
    scenario = scenario_of(data="midc-site", site="EC", first_day="2023-06-01", last_day="2023-06-30", hours=[7, 9])
    assert Scenario.parse(scenario.as_dict()) == scenario


def test_file_energy_by_hand(tmp_path):
    law = build(**midc(tmp_path, lambda day, hour: 800.0), devices=1)
    assert law.joule.flatten().tolist() == [3200.0]  # 800 W/m² for 4 s
    assert law.scale.item() == pytest.approx(5e-4)  # 25 cm² at 20 %
    assert law.mean_joule().item() == pytest.approx(1.6)


def test_slot_length_scales_the_energy(tmp_path):
    law = build(**midc(tmp_path, lambda day, hour: 800.0), devices=1, energy={"slot_second": 10.0})
    assert law.mean_joule().item() == pytest.approx(4.0)


def test_real_file():
    if not SHARED.is_file():
        pytest.skip(f"no measurements at {SHARED}")
    table = pd.read_csv(SHARED)
    hour = table["MST"].str[:2].astype(int)
    ghi = table.iloc[:, 2].clip(lower=0)[(hour >= 6) & (hour < 18)]
    given = {"data": "midc-file", "file": str(SHARED), "devices": 1}
    assert build(**given).mean_joule().item() == pytest.approx(FACTOR * ghi.mean())
    replay = build(**given, law="trace")
    assert len(replay.series_joule) == 30 * 12 * 900
    np.testing.assert_array_equal(replay.series_joule[::15], ghi * 4)  # 15 slots of 4 s in a minute


def test_negative_nights_are_zero_and_missing_values_are_dropped(tmp_path):
    values = {0: "-1.5", 1: "-99999", 2: "600", 3: "", 4: "nan", 5: "-7999", 6: "99999"}
    law = build(**midc(tmp_path, lambda day, hour: values.get(int(hour), "0")), hours=[0, 7])
    assert law.joule.flatten().tolist() == [0.0, 2400.0]
    assert law.prob.flatten().tolist() == [0.5, 0.5]


def test_file_finds_its_column_and_forgives_order_blank_lines_and_byte_order_mark(tmp_path):
    rows = ["6/1/2023,08:00,7,200,1", "", "6/1/2023,07:00,7,100,1", " , ", "6/1/2023,09:00,7,300,1"]
    header = "\ufeffDATE (MM/DD/YYYY),EST,Direct [W/m^2],Global Horizontal [W/m^2],Global [kWh/m^2]"
    replay = build(**written(tmp_path, "\n".join([header, *rows])), law="trace", start=0, hours=[7, 10])
    assert torch.unique_consecutive(replay.series_joule).tolist() == [400.0, 800.0, 1200.0]


def site_frame(file_settings):
    """The MIDC file as pvlib returns a station's data: indexed by aware times, with columns of the clock."""
    return pvlib.iotools.read_midc(file_settings["file"])


SITE = {"data": "midc-site", "site": "EC", "first_day": "2023-06-01", "last_day": "2023-06-02"}


def test_site_equals_file(tmp_path, monkeypatch):
    given = midc(tmp_path, ramp)
    asked = []

    def fetch(*args):
        asked.append([str(arg) for arg in args])
        return site_frame(given)

    monkeypatch.setattr(pvlib.iotools, "read_midc_raw_data_from_nrel", fetch)
    fetched, read = build(**SITE), build(**given)
    assert asked == [["EC", "2023-06-01", "2023-06-02"]]
    torch.testing.assert_close(fetched.joule, read.joule)
    torch.testing.assert_close(fetched.prob, read.prob)


@pytest.mark.parametrize("error", [requests.ConnectionError("no\nroute"), KeyError("Year"), TimeoutError()])
def test_site_out_of_reach_says_what_to_do(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(pvlib.iotools, "read_midc_raw_data_from_nrel", fail)
    refused("harvest.site", "'EC'", type(error).__name__, "data = 'midc-file'", **SITE)


def test_site_without_irradiance(tmp_path, monkeypatch):
    frame = site_frame(midc(tmp_path, ramp))
    empty = [
        frame.rename(columns=lambda name: name.replace("Global", "Direct")),
        frame.assign(**{HEADER.split(",")[2]: "x"}),
    ]
    for bad in empty:
        monkeypatch.setattr(pvlib.iotools, "read_midc_raw_data_from_nrel", lambda *_, bad=bad: bad)
        refused("harvest.site", **SITE)


CLEAR = {"data": "clear-sky", "latitude": 36.1, "longitude": -79.95}


def test_clear_sky_noon_by_hand():
    # equator at its meridian in March: near noon the sun stands near the zenith, Haurwitz: 1098 · exp(-0.059)
    law = build(
        data="clear-sky",
        latitude=0.0,
        longitude=0.0,
        month=3,
        hours=[11.75, 12.5],
        cloudiness_values=[1.0],
        cloudiness_prob=[1.0],
    )
    assert law.joule.max().item() / 4 == pytest.approx(1098 * np.exp(-0.059), rel=0.005)


def test_clear_sky_clouds_scale_the_mean_exactly():
    clear = build(**CLEAR, cloudiness_values=[1], cloudiness_prob=[1])
    cloudy = build(**CLEAR)
    torch.testing.assert_close(cloudy.mean_joule(), clear.mean_joule() * (0.6 + 0.25 * 0.5 + 0.15 * 0.2))
    torch.testing.assert_close(cloudy.prob.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_clear_sky_follows_latitude_season_and_time_zone():
    mean = {
        (latitude, month): build(**{**CLEAR, "latitude": latitude}, month=month).mean_joule()[0].item()
        for latitude in (-36.1, 36.1, 90.0)
        for month in (6, 12)
    }
    assert mean[36.1, 6] > 2 * mean[36.1, 12]
    assert mean[-36.1, 12] > 2 * mean[-36.1, 6]
    assert mean[90.0, 12] == 0
    east = build(**{**CLEAR, "longitude": 105.0}).mean_joule()  # on a zone's own meridian, as -75 is
    torch.testing.assert_close(east, build(**{**CLEAR, "longitude": -75.0}).mean_joule(), rtol=1e-3, atol=0)


def test_clear_sky_trace_is_reproducible_and_near_its_law():
    first, again = build(**CLEAR, law="trace"), build(**CLEAR, law="trace")
    assert torch.equal(first.series_joule, again.series_joule)
    torch.testing.assert_close(first.law.mean_joule(), build(**CLEAR).mean_joule(), rtol=0.05, atol=0)


# laws


def test_iid_law_keeps_the_mean_of_the_samples(tmp_path):
    law = build(**midc(tmp_path, ramp), hours=[6, 18])
    samples = [ramp(day, hour) for day in (1, 2) for hour in range(6, 18)]
    assert law.joule.shape == (1, 1, len(set(samples)))
    assert law.mean_joule()[0].item() == pytest.approx(FACTOR * np.mean(samples))
    assert (law.phase_of_slot == 0).all()


def test_iid_law_compresses_many_samples(tmp_path):
    law = build(**midc(tmp_path, ramp, minutes=1), hours=[6, 18])
    assert law.joule.shape[-1] == 64
    samples = [ramp(day, minute / 60) for day in (1, 2) for minute in range(360, 1080)]
    assert law.mean_joule()[0].item() == pytest.approx(FACTOR * np.mean(samples))


def test_time_of_day_wraps_to_the_next_morning(tmp_path):
    # slots of half an hour and a window of three hours: six slots a day, two to a sample
    law = build(**midc(tmp_path, ramp), law="time-of-day", hours=[9, 12], slots=8, energy={"slot_second": 1800.0})
    assert law.phase_of_slot.tolist() == [0, 0, 1, 1, 2, 2, 0, 0]
    for phase, hour in enumerate((9, 10, 11)):
        assert law.joule[phase, 0].tolist() == [1800 * ramp(1, hour), 1800 * ramp(2, hour)]
        assert law.prob[phase, 0].tolist() == [0.5, 0.5]


def test_time_of_day_has_only_the_phases_in_use(tmp_path):
    law = build(**midc(tmp_path, ramp, minutes=5), law="time-of-day", slots=226)  # 226 · 4 s is just over 15 min
    assert law.phase_of_slot.tolist() == [0] * 225 + [1]
    mean = (law.joule * law.prob).sum(-1).flatten() / 4
    expected = [np.mean([ramp(day, h + m / 60) for day in (1, 2) for m in (0, 5, 10)]) for h in (6, 6.25)]
    np.testing.assert_allclose(mean, expected)


def test_time_of_day_mean_over_a_whole_window_is_the_iid_mean():
    given = {"energy": {"slot_second": 60.0, "transmit_second": 2.0}, "slots": 720}
    torch.testing.assert_close(build(law="time-of-day", **given).mean_joule(), build(**given).mean_joule())


def test_time_of_day_bins_without_samples_take_the_bin_before(tmp_path):
    given = midc(tmp_path, lambda day, hour: "nan" if hour in (9, 11) else ramp(day, hour))
    law = build(**given, law="time-of-day", hours=[9, 12.5], slots=4, energy={"slot_second": 3600.0})
    assert law.phase_of_slot.tolist() == [0, 0, 0, 1]  # 9 takes 10, having none before; 11 takes 10
    assert law.joule[:, 0, 0].tolist() == [3600 * ramp(1, 10), 3600 * ramp(1, 12)]


def test_trace_holds_samples_at_slot_resolution(tmp_path):
    replay = build(
        **midc(tmp_path, ramp), law="trace", start=1, hours=[9, 11], slots=3, energy={"slot_second": 1800.0}
    )
    assert isinstance(replay, HarvestReplay)
    expected = [1800 * ramp(day, hour) for day in (1, 2) for hour in (9, 9, 10, 10)]
    assert replay.series_joule.tolist() == expected
    assert replay.fixed_start == 1
    assert replay.law.joule[replay.law.phase_of_slot].flatten().tolist() == expected[1:4]


def test_trace_with_random_start_plans_with_the_marginal(tmp_path):
    given = midc(tmp_path, ramp)
    replay = build(**given, law="trace")
    assert replay.fixed_start is None
    torch.testing.assert_close(replay.law.mean_joule(), build(**given).mean_joule())


def test_trace_leaves_gaps_out(tmp_path):
    given = midc(tmp_path, lambda day, hour: "-99999" if day == 1 and hour == 10 else ramp(day, hour))
    replay = build(**given, law="trace", hours=[9, 12], energy={"slot_second": 3600.0})
    expected = [ramp(1, 9), ramp(1, 11), *(ramp(2, hour) for hour in (9, 10, 11))]
    assert (replay.series_joule / 3600).tolist() == expected


def test_trace_survives_slots_that_are_no_binary_fraction(tmp_path):
    replay = build(
        **midc(tmp_path, ramp, minutes=1),
        law="trace",
        hours=[6, 7],
        energy={"slot_second": 0.1, "transmit_second": 0.1},
    )
    expected = np.repeat([0.1 * ramp(day, 6 + minute / 60) for day in (1, 2) for minute in range(60)], 600)
    np.testing.assert_allclose(replay.series_joule, expected)


@pytest.mark.parametrize("law", ["iid", "time-of-day", "trace"])
@pytest.mark.parametrize("data", [{}, CLEAR])
def test_sampled_mean_matches_the_law(law, data):
    model = build(law=law, **data, slots=1, devices=2, panel_cm2=[25.0, 50.0])
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(20_000, 2, 2, generator=generator, dtype=torch.float64)
    harvested, _ = model.step(0, model.start(uniform[..., 0]), uniform.flip(-1))
    torch.testing.assert_close(harvested.mean(0), model.law.mean_joule(), rtol=0.03, atol=0)


# panel, month, hours, step


def test_panels_by_device():
    one = build(devices=1).mean_joule().item()
    law = build(devices=3, panel_cm2=[25.0, 50.0, 0.0], efficiency=[0.2, 0.1, 0.3])
    assert law.scale.tolist() == pytest.approx([5e-4, 5e-4, 0.0])
    assert law.mean_joule().tolist() == pytest.approx([one, one, 0.0])


def test_month_and_hours_select():
    means = {month: build(month=month).mean_joule()[0].item() for month in (1, 6, 12)}
    assert means[6] > 1.5 * means[1] > 0 < means[12] < means[6]
    assert build(hours=[10, 14]).mean_joule()[0] > build(hours=[6, 18]).mean_joule()[0]
    assert build(hours=[0, 4]).mean_joule()[0] == 0
    whole_day = build(hours=[0, 24], law="trace", energy={"slot_second": 3600.0})
    assert len(whole_day.series_joule) == 30 * 24


@pytest.mark.parametrize("minutes", [1, 5, 60])
def test_step_is_inferred(tmp_path, minutes):
    replay = build(**midc(tmp_path, ramp, minutes=minutes), law="trace", hours=[6, 7])
    assert len(replay.series_joule) == 2 * 900
    _, counts = torch.unique_consecutive(replay.series_joule, return_counts=True)
    assert counts.tolist() == [minutes * 15] * (2 * 60 // minutes)


# bad inputs


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty"]),
        ("\n \n", ["is empty"]),
        (HEADER, ["number of such samples 0 of 0"]),
        ("DATE,MST,Direct [W/m^2]\n6/1/2023,00:00,1", ["Global", "DATE, MST, Direct [W/m^2]"]),
        ("DATE,MST,Global [kWh/m^2]\n6/1/2023,00:00,1", ["[W/m^2]"]),
        (f"{HEADER}\n6/1/2023,00:00,1\n2023-06-01,00:01,1", ["line 3", "'2023-06-01 00:01'"]),
        (f"{HEADER}\n\n6/1/2023,25:00,1", ["line 3", "'6/1/2023 25:00'"]),
        (f"{HEADER}\n6/1/2023", ["line 2", "'6/1/2023'"]),
        (f"{HEADER}\n6/1/2023,00:00,sunny", ["line 2", "'sunny'", "W/m²"]),
        (f"{HEADER}\n6/1/2023,07:00,-99999\n6/1/2023,08:00,-99999", ["number of such samples 0 of 2"]),
    ],
)
def test_malformed_files(tmp_path, text, parts):
    refused("harvest.file", *parts, **written(tmp_path, text))


def test_unreadable_files(tmp_path):
    refused("harvest.file", "readable", data="midc-file", file=str(tmp_path / "absent.txt"))
    refused("harvest.file", "readable", data="midc-file", file=str(tmp_path))
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    refused("harvest.file", "readable", data="midc-file", file=str(binary))
    refused("harvest.file", "readable", data="midc-file", file="https://example.org/midc.txt")


def test_data_that_do_not_cover_the_selection(tmp_path):
    given = midc(tmp_path, ramp, month=7)
    refused("harvest.month", "[7]", "value 6", **given)
    refused("harvest.hours", "every 60 minutes", "[6.2, 6.8]", **given, month=7, hours=[6.2, 6.8])
    long_slots = {"hours": [6.05, 7.5], "energy": {"slot_second": 5220.0}}  # samples begin at 7 h
    refused("harvest.hours", "5220 s", **given, month=7, law="trace", **long_slots)
    single = written(tmp_path, f"{HEADER}\n6/1/2023,07:00,5")
    refused("harvest.month", "two times", **single)


def test_too_long_a_trace():
    refused("energy.slot_second", "1296000000", law="trace", energy={"slot_second": 1e-3, "transmit_second": 1e-3})


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("file", {"data": "midc-file"}),
        ("site", {"data": "midc-site", "first_day": "2023-06-01", "last_day": "2023-06-02"}),
        ("first_day", {"data": "midc-site", "site": "EC", "last_day": "2023-06-02"}),
        ("last_day", {"data": "midc-site", "site": "EC", "first_day": "2023-06-01"}),
        ("last_day", {**SITE, "last_day": "2023-05-31"}),
        ("latitude", {"data": "clear-sky", "longitude": 0.0}),
        ("longitude", {"data": "clear-sky", "latitude": 0.0}),
        ("file", {"file": "forgot-to-set-data.txt"}),
        ("site", {**CLEAR, "site": "EC"}),
        ("hours", {"hours": [18, 6]}),
        ("hours", {"hours": [6, 6]}),
        ("hours", {"hours": [-1, 6]}),
        ("hours", {"hours": [6, 25]}),
        ("start", {"start": 3}),
        ("efficiency", {"efficiency": 20.0}),
        ("efficiency", {"devices": 2, "efficiency": [0.2, 1.1]}),
        ("cloudiness_prob", {**CLEAR, "cloudiness_values": [1.0]}),
        ("cloudiness_prob", {**CLEAR, "cloudiness_prob": [0.5, 0.5, 0.5]}),
    ],
)
def test_settings_that_do_not_fit_together(field, settings):
    refused(f"harvest.{field}", **settings)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("data", {"data": "nasa"}),
        ("law", {"law": "markov"}),
        ("month", {"month": 13}),
        ("month", {"month": "June"}),
        ("latitude", {**CLEAR, "latitude": 91.0}),
        ("longitude", {**CLEAR, "longitude": 181.0}),
        ("first_day", {**SITE, "first_day": "yesterday"}),
        ("panel_cm2", {"panel_cm2": -1.0}),
        ("panel_cm2", {"devices": 3, "panel_cm2": [25.0, 25.0]}),
        ("efficiency", {"efficiency": float("nan")}),
        ("cloudiness_values.1", {**CLEAR, "cloudiness_values": [0.5, 1.5]}),
        ("start", {"law": "trace", "start": -1}),
    ],
)
def test_settings_refused_at_the_door(field, settings):
    with pytest.raises(ScenarioError) as caught:
        scenario_of(**settings)
    assert caught.value.field.startswith(f"harvest.{field}")
    assert "expected" in str(caught.value)
