"""Radios and boards: energies against the arithmetic of data sheets, and numbers that give way to the user's."""

import json
import tomllib

import pytest

import heliomesh as hm
from heliomesh.scenario import parts
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import Energy

DIGITS_BITS = 4810 * 32  # a perceptron with 64 · 64 + 64 + 64 · 10 + 10 parameters, as float32
# forwards, gradients of both layers' weights, and of the second layer's inputs; two operations per product
DIGITS_FLOP = 2 * (64 * 64 + 64 * 10 + 64 * 64 + 64 * 10 + 64 * 10)
ROOMY = {"energy.slot_second": 60.0, "energy.capacity_joule": 50.0}
OWN = """
title = "a radio of mine"
supply_volt = 2.0
bit_per_second = 1000.0
send_dbm = [10.0]
send_milliampere = [30.0]

[source]
document = "my measurements"
"""


def named(**changes):
    """`tiny` with other settings, __ for dots."""
    return Scenario.load("tiny").override(ROOMY | {key.replace("__", "."): value for key, value in changes.items()})


def sent_joule(scenario):
    """What sending one update costs at each power."""
    problem = hm.build(scenario.override({"energy.compute_joule": 0.0}))
    return problem.actions.spent_joule[0].tolist()


# volt × ampere × seconds, written out
@pytest.mark.parametrize(
    ("radio", "joule"),
    [
        ("nrf52840", [3.0 * 6.40e-3 * 0.15392, 3.0 * 16.40e-3 * 0.15392]),  # 0 and 8 dBm, 153,920 bits at 1 Mbit/s
        ("cc2340r5", [3.0 * 5.1e-3 * 0.15392, 3.0 * 7.7e-3 * 0.15392, 3.0 * 10.7e-3 * 0.15392]),  # 0, 4 and 8 dBm
        ("esp32", [3.3 * 240e-3 * 0.15392]),  # 19.5 dBm
        ("sx1276", [3.3 * ampere * 28.15 for ampere in (20e-3, 29e-3, 87e-3, 120e-3)]),  # 28.15 s at 5,469 bit/s
    ],
)
def test_sending_costs_what_the_data_sheet_says(radio, joule):
    assert sent_joule(named(energy__radio=radio)) == pytest.approx([0.0, *joule], rel=0.05)


@pytest.mark.parametrize(
    ("board", "joule"),
    [
        ("stm32l476", 3.0 * 8e-3 * 160 * DIGITS_FLOP / (2 * 0.12 * 80e6)),  # 8 mA at 80 MHz, 0.12 MAC per cycle
        ("esp32", 3.3 * 68e-3 * 160 * DIGITS_FLOP / (2 * 256 * 240e6 / 1047)),  # 256 MAC in 1047 cycles of 240 MHz
        ("raspberry-pi-4", 7.2 * 160 * DIGITS_FLOP / 11.889e9),
        ("raspberry-pi-5", 12.7 * 160 * DIGITS_FLOP / 35.169e9),
        ("jetson-nano", 10.0 * 160 * DIGITS_FLOP / (36 * 2 * 4.09e9)),
    ],
)
def test_training_costs_what_the_board_draws_while_it_computes(board, joule):
    scenario = named(energy__board=board, learning__local_steps=5, learning__batch=32)
    problem = hm.build(scenario)
    assert problem.compute_joule.tolist() == pytest.approx([joule] * 5, rel=0.05)
    assert problem.actions.spent_joule[0, 1] == problem.compute_joule[0] + problem.consumption.sending.joule(
        problem.actions.power_watt[1]
    )


def test_radiated_powers_and_noise_follow_from_decibels():
    """A packet at the sensitivity fails as often as the data sheet says."""
    problem = hm.build(named(energy__radio="sx1276"))
    assert problem.scenario.energy.powers_watt == pytest.approx((0.0, 5.01e-3, 19.95e-3, 50.1e-3, 0.1), rel=1e-3)
    sensitivity = problem.link.noise_watt.new_tensor([10**-12.3 / 1000])
    assert float(problem.link.packet_error(sensitivity, problem.link.noise_watt[:1])) == pytest.approx(0.01)


@pytest.mark.parametrize("kind", ["radio", "board"])
def test_no_number_without_a_source(kind):
    for name in parts.names(kind):
        part = parts.read(kind, name)
        numbers = set(part.model_dump(exclude_none=True)) - {"title", "source"}
        assert {"document"} | numbers == set(part.source), name
        assert all(part.source.values()), name


def test_what_the_user_sets_is_kept():
    data = {
        "energy": {"radio": "nrf52840", "transmit_second": 0.5, "control_watt": 0.2},
        "link": {"noise_watt": 1e-9},
    }
    scenario = Scenario.parse(data)
    assert (scenario.energy.transmit_second, scenario.energy.control_watt, scenario.link.noise_watt) == (
        0.5,
        0.2,
        1e-9,
    )
    assert scenario.energy.bit_per_second == 1e6
    assert scenario.energy.radio is None  # the numbers are all that is left of it
    assert Scenario.parse(tomllib.loads(scenario.to_toml())) == scenario


def test_another_radio_replaces_the_numbers_of_the_first():
    first = named(energy__radio="nrf52840", energy__board="esp32")
    second = first.override({"energy.radio": "cc2340r5", "energy.control_watt": 0.3})
    assert second == named(energy__radio="cc2340r5", energy__board="esp32", energy__control_watt=0.3)
    assert first.override({"energy.board": "stm32l476"}) == named(energy__radio="nrf52840", energy__board="stm32l476")


def test_a_board_replaces_an_energy_of_the_scenario_but_not_of_the_same_change():
    assert Scenario.load("tiny").energy.compute_joule is not None
    assert named(energy__board="esp32").energy.compute_joule is None
    with pytest.raises(ScenarioError, match=r"energy\.compute_joule: expected no value beside energy\.compute_watt"):
        named(energy__board="esp32", energy__compute_joule=1.0)


def test_an_own_radio_lies_beside_its_scenario(tmp_path, monkeypatch):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.toml").write_text(OWN, encoding="utf-8")
    (tmp_path / "study" / "case.toml").write_text("[energy]\nradio = 'mine.toml'\nslot_second = 200.0\n")
    monkeypatch.chdir(tmp_path)
    scenario = Scenario.load("study/case.toml")
    assert scenario.energy.consumed_watt == pytest.approx((0.0, 0.06))
    assert scenario.energy.powers_watt == pytest.approx((0.0, 0.01))
    assert scenario.link.noise_watt == Scenario.parse({}).link.noise_watt  # it names no sensitivity
    (tmp_path / "study" / "mine.toml").unlink()
    assert scenario.override({"seed": 3}).energy == scenario.energy  # nothing is read again


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("title = ", "energy.radio", "expected TOML"),
        (OWN.replace("supply_volt", "supply_vlot"), "energy.radio.supply_vlot", "did you mean 'supply_volt'?"),
        (OWN.replace("1000.0", "0.0"), "energy.radio.bit_per_second", "greater than 0, actual value 0.0"),
        (OWN.replace("[10.0]", "[10.0, 14.0]"), "energy.radio.send_milliampere", "each of the 2 in send_dbm"),
        (OWN.replace("[10.0]", "[1e9]"), "energy.radio.send_dbm.0", "less than or equal to 100"),
        (
            OWN.replace("[10.0]", "[10.0, 7.0]").replace("[30.0]", "[30.0, 20.0]"),
            "energy.radio.send_dbm",
            "expected rising powers",
        ),
        ("sensitivity_dbm = -90.0\n" + OWN, "energy.radio.sensitivity_error", "actual value missing"),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(text, field, words, tmp_path):
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        Scenario.parse({"energy": {"radio": str(tmp_path / "mine.toml")}})
    assert caught.value.field == field
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("field", "joule_or_watt"), [("receive_watt", 3.0 * 6.26e-3), ("sleep_watt", 3.0 * 1.5e-6), ("wake_joule", None)]
)
def test_what_listening_and_sleeping_draw_comes_with_its_fields(field, joule_or_watt):
    """A radio sets such a field as soon as scenarios have it."""
    radio = parts.read("radio", "nrf52840")
    assert parts.radio_numbers(radio)["energy"].get(field) == (joule_or_watt and pytest.approx(joule_or_watt))
    if field in Energy.model_fields and joule_or_watt is not None:
        assert getattr(named(energy__radio="nrf52840").energy, field) == pytest.approx(joule_or_watt)


@pytest.mark.parametrize("kind", ["radio", "board"])
def test_the_commands_list_all_parts_with_their_numbers(kind, call):
    code, printed, _ = call("scenario", f"{kind}s", "--json")
    assert code == 0
    assert set(json.loads(printed)) == set(parts.names(kind))
    code, printed, _ = call("scenario", f"{kind}s")
    assert code == 0
    assert all(name in printed for name in parts.names(kind))
