"""What agent.toml says of the chips and of the battery."""

from typing import Annotated

from pydantic import Field

from heliomesh.scenario.section import Fraction, Positive, Section

Index = Annotated[int, Field(ge=0)]
VoltagePoint = Annotated[tuple[Positive, Fraction], Field(strict=False)]


class Settings(Section):
    """The table ``sensor.options``."""

    bus: Index = Field(1, description="number of the I²C bus")
    panel_address: Index = Field(0x40, description="address of the chip at the panel")
    load_address: Index = Field(0x41, description="address of the chip at the load")
    shunt_ohm: Positive = Field(0.1, description="the shunt's resistance [Ω]")
    voltage_curve: tuple[VoltagePoint, ...] | None = Field(
        None, strict=False, description="the battery's voltages [V], each with the share of its energy"
    )
    correction_second: Positive = Field(
        14_400.0, description="time constant with which the voltage corrects the counted energy [s]"
    )
