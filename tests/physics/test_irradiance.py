"""Irradiance files: every format gives the same sun, gaps are filled or named, and a wrong zone is noticed."""

import json

import numpy as np
import pandas as pd
import pytest

import heliomesh as hm
from heliomesh.model.doubts import remarks
from heliomesh.physics import solar_time
from heliomesh.physics.harvest import solar
from heliomesh.physics.irradiance import irradiance_file
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario

LATITUDE, LONGITUDE, ZONE_HOUR = 39.742, -105.18, -7
DAY = pd.date_range("2023-06-01", "2023-06-04", freq="h", inclusive="left")  # local standard time, beginnings


def sun(clock):
    """A made-up sun [W/m²] by local standard time: a half sine from 6 to 18 h, weaker from day to day."""
    hour = np.asarray(clock.hour + clock.minute / 60)
    return np.asarray(800 - 20 * clock.day) * np.sin(np.pi * (hour - 6) / 12).clip(min=0)


def values(label):
    """Labels on the local clock and mean irradiance of the hours that they stand for."""
    shift = pd.Timedelta(minutes={"begin": 0, "middle": 30, "end": 60}[label])
    return DAY + shift, sun(DAY + pd.Timedelta(minutes=30)).round(4)


def to_utc(clock):
    return clock - pd.Timedelta(hours=ZONE_HOUR)


# the same three days in every format


def tmy3_text():
    times, ghi = values("end")
    last = [
        f"{(t - pd.Timedelta(minutes=1)):%m/%d/%Y},{t.hour or 24:02d}:00,{g}" for t, g in zip(times, ghi, strict=True)
    ]
    head = [
        f'724666,"GOLDEN",CO,{ZONE_HOUR}.0,{LATITUDE},{LONGITUDE},1829',
        "Date (MM/DD/YYYY),Time (HH:MM),GHI (W/m^2)",
    ]
    return "\n".join([*head, *last])


def nsrdb_text():
    times, ghi = values("middle")
    fields = "Source,Location ID,City,State,Country,Latitude,Longitude,Time Zone,Elevation,Local Time Zone"
    about = f"NSRDB,145809,-,-,-,{LATITUDE},{LONGITUDE},{ZONE_HOUR},1829,{ZONE_HOUR}"
    rows = [f"{t.year},{t.month},{t.day},{t.hour},{t.minute},{g},0" for t, g in zip(times, ghi, strict=True)]
    return "\n".join([fields, about, "Year,Month,Day,Hour,Minute,GHI,DNI", *rows]) + "\n"


def pvgis_rows(column):
    times, ghi = values("middle")
    return [
        {"time": f"{to_utc(t):%Y%m%d:%H%M}", column: float(g), "Int": 0.0} for t, g in zip(times, ghi, strict=True)
    ]


def pvgis_csv():
    head = [
        f"Latitude (decimal degrees):\t{LATITUDE}",
        f"Longitude (decimal degrees):\t{LONGITUDE}",
        "Elevation (m):\t1829",
    ]
    rows = [f"{row['time']},{row['G(i)']},{row['Int']}" for row in pvgis_rows("G(i)")]
    return "\n".join(
        [*head, "Radiation database:\tPVGIS-ERA5", "", "", "time,G(i),Int", *rows, "", "G(i): irradiance"]
    )


def pvgis_json():
    place = {"latitude": LATITUDE, "longitude": LONGITUDE, "elevation": 1829.0}
    return json.dumps(
        {"inputs": {"location": place}, "outputs": {"hourly": pvgis_rows("G(i)")}, "meta": {"inputs": {}}}
    )


def midc_text(zone="MST"):
    times, ghi = values("begin")
    rows = [f"{t:%m/%d/%Y},{t:%H:%M},{g}" for t, g in zip(times, ghi, strict=True)]
    return "\n".join([f"DATE (MM/DD/YYYY),{zone},Global PSP [W/m^2]", *rows])


def midc_raw():
    times, ghi = values("begin")
    rows = [f"9,{t.year},{t.day_of_year},{t.hour * 100 + t.minute},{g}" for t, g in zip(times, ghi, strict=True)]
    return "\n".join(["Station,Year,DOY,MST,Global Horizontal [W/m^2]", *rows])


def csv_text(zone="", head="time,GHI", clock=None, label="begin"):
    times, ghi = values(label)
    times = times if clock is None else clock(times)
    return "\n".join([head, *(f"{t:%Y-%m-%dT%H:%M}{zone},{g}" for t, g in zip(times, ghi, strict=True))])


FORMATS = {
    "tmy3": (tmy3_text, "tmy3"),
    "nsrdb": (nsrdb_text, "nsrdb"),
    "pvgis csv": (pvgis_csv, "pvgis"),
    "pvgis json": (pvgis_json, "pvgis"),
    "midc": (midc_text, "midc"),
    "midc raw": (midc_raw, "midc"),
    "csv": (csv_text, "csv"),
    "csv with a zone": (lambda: csv_text("-07:00"), "csv"),
}


def read(folder, text, file_format="auto", timezone=None, label=None, longitude=None):
    file = folder / "irradiance.txt"
    file.write_text(text, encoding="utf-8")
    return irradiance_file(str(file), file_format, timezone, label, longitude)[0]


def assert_three_days(ghi):
    assert ghi.index.to_list() == DAY.to_list()
    np.testing.assert_allclose(ghi.to_numpy(), values("begin")[1], atol=1e-9)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("named", [False, True])
def test_every_format_gives_the_same_sun(tmp_path, name, named):
    text, file_format = FORMATS[name]
    assert_three_days(read(tmp_path, text(), file_format if named else "auto"))


def test_the_panels_own_plane_may_come_in_parts(tmp_path):
    whole = json.loads(pvgis_json())
    for row in whole["outputs"]["hourly"]:
        ghi = row.pop("G(i)")
        row |= {"Gb(i)": 0.7 * ghi, "Gd(i)": 0.2 * ghi, "Gr(i)": 0.1 * ghi}
    assert_three_days(read(tmp_path, json.dumps(whole)))


@pytest.mark.parametrize("label", ["begin", "middle", "end"])
def test_a_label_can_be_named(tmp_path, label):
    assert_three_days(read(tmp_path, csv_text(label=label), label=label))


def test_a_table_needs_no_header_and_may_use_semicolons(tmp_path):
    lines = csv_text().splitlines()[1:]
    assert_three_days(read(tmp_path, "\n".join(lines)))
    assert_three_days(read(tmp_path, "\n".join(line.replace(",", ";") for line in lines)))


def test_a_table_may_use_decimal_commas_between_semicolons(tmp_path):
    european = csv_text().replace(",", ";").replace(".", ",")
    assert "," in european
    assert_three_days(read(tmp_path, european))


def test_a_table_takes_the_column_of_irradiance(tmp_path):
    lines = csv_text().splitlines()[1:]
    moved = ["time,temperature,GHI [W/m2]", *(line.replace(",", ",21.5,") for line in lines)]
    assert_three_days(read(tmp_path, "\n".join(moved)))


# zones


def test_times_in_utc_go_to_the_place(tmp_path):
    assert_three_days(read(tmp_path, csv_text("Z", clock=to_utc), longitude=LONGITUDE))
    assert_three_days(read(tmp_path, csv_text(clock=to_utc), timezone="UTC", longitude=LONGITUDE))


def test_summer_time_becomes_standard_time(tmp_path):
    summer = csv_text(clock=lambda times: times + pd.Timedelta(hours=1))
    assert_three_days(read(tmp_path, summer, timezone="America/Denver"))


def refused(field, folder, text, *parts, **settings):
    with pytest.raises(ScenarioError) as caught:
        read(folder, text, **settings)
    assert caught.value.field == field
    for part in ("expected", "actual", *parts):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sun_at_night_is_a_wrong_zone(tmp_path):
    refused("harvest.timezone", tmp_path, csv_text(clock=to_utc), "within 3 hours of 12:00, noon", "middle 19:")
    refused("harvest.timezone", tmp_path, csv_text("Z"), "solar noon at longitude -105.18°", longitude=LONGITUDE)
    wrong = nsrdb_text().replace(f",{ZONE_HOUR},1829,{ZONE_HOUR}", ",-4,1829,-4")
    refused("harvest.timezone", tmp_path, wrong, "15:01, solar noon at longitude -105.18°", "middle 12:00")
    assert_three_days(read(tmp_path, wrong, timezone="Etc/GMT+7"))  # the remedy


def test_a_zone_that_cannot_be(tmp_path):
    refused("harvest.timezone", tmp_path, csv_text(), "'Mars/Olympus'", timezone="Mars/Olympus")
    spring = "time,GHI\n2023-03-12T01:00,0\n2023-03-12T02:00,0\n2023-03-12T03:00,0"
    refused("harvest.timezone", tmp_path, spring, "2023-03-12 02:00:00", timezone="America/Denver")


def test_partial_days_and_constant_light_are_not_judged(tmp_path):
    few = "\n".join(csv_text().splitlines()[:12])
    assert len(read(tmp_path, few)) == 11
    constant = "\n".join(f"{t:%Y-%m-%dT%H:%M},300" for t in DAY)
    assert len(read(tmp_path, constant)) == len(DAY)


# files that are none


@pytest.mark.parametrize(
    ("text", "parts", "settings"),
    [
        ("", ["is empty"], {}),
        ("time,GHI\n2023-06-01T25:00,1", ["line 2", "'2023-06-01T25:00'"], {}),
        ("time,GHI\n2023-06-01T12:00,dark", ["line 2", "'dark'", "W/m²"], {}),
        ("time,GHI\n2023-06-01T12:00Z,1\n2023-06-01T13:00,1", ["line 3", "a zone"], {}),
        ("time,GHI\n2023-06-01T12:00,512,5", ["line 2", "number of values 3", "decimal points"], {}),
        ("2023-06-01T12:00,512,5", ["two columns", "number of columns 3"], {}),
        ("time,GHI\n2023-06-01T12:00,-9999", ["number of such samples 0 of 1"], {}),
        ("{", ["PVGIS", "JSONDecodeError"], {}),
        ('{"outputs": {"hourly": []}}', ["PVGIS", "KeyError"], {}),
        (csv_text(), ["TMY3"], {"file_format": "tmy3"}),
        (csv_text(), ["NSRDB"], {"file_format": "nsrdb"}),
        (csv_text(), ["PVGIS"], {"file_format": "pvgis"}),
        (csv_text(), ["Global"], {"file_format": "midc"}),
        (nsrdb_text().replace("GHI", "Wind"), ["a column ghi", "Wind"], {}),
        (midc_raw().replace("Global", "Direct"), ["Global"], {}),
        (midc_raw().replace(",MST,", ",XYZ,"), ["MIDC raw"], {}),
    ],
)
def test_malformed_files(tmp_path, text, parts, settings):
    refused("harvest.file", tmp_path, text, *parts, **settings)


# typical years


def test_a_typical_year_is_brought_into_one_year(tmp_path):
    """Its months are of different years; those of UTC move by some hours, around the end of the year."""
    times = pd.date_range("2001-01-01", "2002-01-01", freq="h", inclusive="left")
    years = 1980 + times.month * 3 % 11
    rows = [
        {"time(UTC)": f"{year}{t:%m%d:%H%M}", "G(h)": float(g), "Int": 0}
        for t, year, g in zip(times, years, sun(times + pd.Timedelta(hours=ZONE_HOUR)), strict=True)
    ]
    place = {"latitude": LATITUDE, "longitude": LONGITUDE, "elevation": 1829.0}
    text = json.dumps(
        {
            "inputs": {"location": place},
            "outputs": {"tmy_hourly": rows, "months_selected": []},
            "meta": {"inputs": {}},
        }
    )
    ghi = read(tmp_path, text, label="begin")
    assert ghi.index.to_list() == times.to_list()
    first = pd.date_range("2001-06-01", periods=24, freq="h")
    np.testing.assert_allclose(ghi.loc[first], sun(first), atol=1e-9)


def test_measured_years_stay_what_they_are():
    times = pd.date_range("2021-05-01", "2023-07-01", freq="h")
    ghi = pd.Series(sun(times), index=times)
    assert solar_time.in_one_year(ghi) is ghi


# gaps


def scenario_of(folder, text, **harvest):
    (folder / "irradiance.txt").write_text(text, encoding="utf-8")
    given = {"source": "solar", "data": "file", "file": str(folder / "irradiance.txt"), "hours": [0, 24], **harvest}
    return Scenario.parse({"slots": 72, "energy": {"slot_second": 3600.0}, "harvest": given})


def without_lines(text, *numbers):
    return "\n".join(line for number, line in enumerate(text.splitlines()) if number not in numbers)


def test_short_gaps_are_interpolated_and_told(tmp_path):
    text = without_lines(csv_text(), 11, 35)  # 10 h of two days
    problem = hm.build(scenario_of(tmp_path, text, law="trace", start="06-01"))
    series = problem.harvest.series_joule.numpy() / 3600
    assert len(series) == 72
    expected = values("begin")[1].copy()
    for hour in (10, 34):
        expected[hour] = (expected[hour - 1] + expected[hour + 1]) / 2
    np.testing.assert_allclose(series, expected)
    assert remarks(problem)[-1] == "harvest.file: 120 minutes of irradiance in 2 gaps were interpolated"


def test_missing_values_are_gaps(tmp_path):
    text = csv_text().replace(f"T10:00,{values('begin')[1][10]}", "T10:00,-9999")
    scenario = scenario_of(tmp_path, text, law="trace", start="06-01")
    assert "60 minutes of irradiance in 1 gap were" in solar.build(scenario.harvest, scenario).law.remarks[-1]


def test_long_gaps_are_refused_by_the_first(tmp_path):
    text = without_lines(csv_text(), 10, 35, 36, 37)
    for law in ("iid", "time-of-day", "trace"):
        scenario = scenario_of(tmp_path, text, law=law)
        with pytest.raises(ScenarioError) as caught:
            solar.build(scenario.harvest, scenario)
        assert str(caught.value) == (
            "harvest.file: expected gaps of at most 60 minutes (harvest.gap_minute), "
            "actual first gap from 2023-06-02 10:00 to 2023-06-02 13:00, 180 minutes"
        )
    wider = scenario_of(tmp_path, text, gap_minute=180.0)
    assert "240 minutes" in solar.build(wider.harvest, wider).law.remarks[-1]


def test_gaps_of_other_months_do_not_matter(tmp_path):
    head, *june = csv_text().splitlines()
    first_day = [line for line in june if "-06-01" in line and "T03" not in line and "T04" not in line]
    may = [line.replace("-06-01", "-05-31") for line in first_day]
    scenario = scenario_of(tmp_path, "\n".join([head, *may, *june]))
    assert solar.build(scenario.harvest, scenario).law.remarks[1:] == ()
    in_may = scenario.override({"harvest.month": [5, 6]})
    with pytest.raises(ScenarioError, match="first gap from 2023-05-31 03:00 to 2023-05-31 05:00"):
        solar.build(in_may.harvest, in_may)


def test_a_file_of_midc_needs_no_other_name(tmp_path):
    """The old way to name an MIDC file gives the same law."""
    new = scenario_of(tmp_path, midc_text())
    old = new.override({"harvest.data": "midc-file"})
    one, other = (solar.build(scenario.harvest, scenario) for scenario in (new, old))
    assert np.array_equal(one.joule, other.joule)
    assert np.array_equal(one.prob, other.prob)
