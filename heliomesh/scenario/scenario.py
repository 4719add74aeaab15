"""Every input of heliomesh: one frozen, validated scenario, read from and written to TOML."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Self

import tomli_w
from pydantic import Field, SerializeAsAny, ValidationError

from heliomesh.common import catalog
from heliomesh.common.arguments import checked
from heliomesh.scenario import parts, schema
from heliomesh.scenario.checks import check_together
from heliomesh.scenario.errors import ScenarioError, explained, one_of, refuse, shortened
from heliomesh.scenario.files import FILE_FIELDS, find_files, parsed, read_scenario
from heliomesh.scenario.places import OF_GRAPH, placed
from heliomesh.scenario.section import Count, Section, validated


def _as_text(field: str, value: object) -> object:
    """A Python function, class or module as the text ``module:name`` that means it; other values as they are."""
    if not (callable(value) or isinstance(value, ModuleType)):
        return value
    try:
        text = catalog.spelled(value)
    except catalog.UnknownVariantError as error:
        raise ScenarioError(field, str(error)) from None
    catalog.vouch(text)  # no file holds an object
    return text


class Scenario(Section):
    """Everything that determines a result, bar the choice of planner."""

    name: str = Field("unnamed", description="shown in tables and pages; decides nothing")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="draws random graphs and a clear sky's clouds, and serves planners; episodes have their own"
    )
    slots: Count = Field(200, description="length of an episode")
    network: schema.Network = schema.Network()
    channel: SerializeAsAny[schema.ChannelSettings]
    link: schema.Link = schema.Link()
    energy: schema.Energy = schema.Energy()
    harvest: SerializeAsAny[Section]
    storage: SerializeAsAny[schema.StorageSettings] = schema.StorageSettings()
    cost: schema.Cost = schema.Cost()
    learning: schema.Learning = schema.Learning()

    def __init__(self, **fields: Any) -> None:
        """Check the fields one by one; `parse` also checks them together. Raises ScenarioError."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise explained(error.errors(), "", type(self)) from None

    @classmethod
    @checked
    def parse(cls, data: Mapping[str, Any], *, trust: bool = False) -> Self:
        """Validate a nested mapping (as read from TOML) and return the scenario; raises ScenarioError.

        Code that it names as ``module:name`` runs only with ``trust``.
        """
        with catalog.reading(trust, data):
            return cls._validated(data)

    @classmethod
    def _validated(cls, data: Mapping[str, Any]) -> Self:
        fields = parts.filled(data)
        for key in fields:
            if key not in cls.model_fields:
                raise ScenarioError(key, one_of(list(cls.model_fields), "key", key))
        for name, fixed in _tables().items():
            raw = fields.get(name, {})
            if isinstance(raw, Mapping):
                raw = {key: _as_text(f"{name}.{key}", value) for key, value in raw.items()}
                raw = placed(raw) if name == "network" else raw
            model = _source_class(name, raw if isinstance(raw, Mapping) else {}) if name in schema.SOURCES else fixed
            fields[name] = validated(model, raw, name)
        scenario = cls(**fields)
        check_together(scenario)
        return scenario

    @classmethod
    @checked
    def load(cls, name_or_path: str | Path, *, trust: bool = False) -> Self:
        """Read a shipped scenario by name (``ring10``) or any ``.toml`` file by path.

        Code that the file names as ``module:name`` runs only with ``trust``.
        """
        text, name, folder = read_scenario(name_or_path)
        data = parsed("scenario", text, f"file {str(name_or_path)!r}")
        find_files(data, folder)
        return cls.parse({"name": name, **data}, trust=trust)

    @classmethod
    def from_toml(cls, text: str, *, trust: bool = False) -> Self:
        """Read what `to_toml` wrote, as plans, traces and runs keep it; raises ScenarioError."""
        return cls.parse(parsed("scenario", text, f"text {shortened(text)}"), trust=trust)

    @checked
    def override(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with dotted paths replaced: ``{"network.devices": 20}``.

        Where a name is expected, a Python function, class or module may stand: ``{"learning.model": my_factory}``.
        A new source drops the settings of the old one, so sources are set before all else. A radio or board drops
        the numbers that it brings. New places drop the graph.
        """
        data = self.as_dict()
        parts.forget(data, changes)
        if any(changes.get(f"network.{field}") is not None for field in ("positions_metre", "places_file")):
            data["network"] = {key: value for key, value in data["network"].items() if key not in OF_GRAPH}
        catalog.vouch(changes)  # who calls names the code
        for path in sorted(changes, key=lambda path: not path.endswith(".source")):
            _set_path(data, path, _as_text(path, changes[path]))
        return type(self)._validated(data)

    @checked
    def first_slots(self, slots: int) -> Self:
        """The scenario of its first slots, with the clouds that they have."""
        changes: dict[str, Any] = {"slots": slots}
        if (cloudy := getattr(self.harvest, "cloudy", None)) is not None:
            within = [(first, min(count, slots - first), factor) for first, count, factor in cloudy if first < slots]
            changes |= {"harvest.cloudy": within or None}
            if not within:
                changes |= {"harvest.cloudy_known": None}
        return self.override(changes)

    def as_dict(self) -> dict[str, Any]:
        """Nested plain data without unset optional values; `parse` reads it back to an equal scenario.

        The linear storage law has no settings and is left out, as it was before there were others.
        """
        data = self.model_dump(mode="json", exclude_none=True)
        if data["storage"] == {"source": "linear"}:
            del data["storage"]
        return data

    def chosen(self) -> dict[str, Any]:
        """`as_dict` without what equals its default, sources named all the same; `parse` reads it back too."""
        data = self._collapsed().model_dump(mode="json", exclude_defaults=True)
        whole = self.as_dict()
        named = {
            name: {"source": whole[name]["source"]} | data.get(name, {}) for name in schema.SOURCES if name in whole
        }
        return {name: part for name, part in (data | named).items() if part != {}}

    def _collapsed(self) -> Self:
        """The same scenario with one number in place of a list in which all devices have it."""
        changed = {}
        for name in schema.PER_DEVICE:
            section: Section = getattr(self, name)
            values = {field: getattr(section, field) for field in section.per_device}
            equal = {field: one[0] for field, one in values.items() if isinstance(one, tuple) and len(set(one)) == 1}
            changed[name] = section.model_copy(update=equal)
        return self.model_copy(update=changed)

    def to_toml(self) -> str:
        """The scenario as TOML text."""
        return tomli_w.dumps(self.as_dict())

    @property
    def content_hash(self) -> str:
        """Hexadecimal sha256 of what determines a result: all values but names, and files by content."""
        data = self._collapsed().as_dict()
        del data["name"]
        data["network"].pop("names", None)
        for section, field in FILE_FIELDS:
            if field in data[section]:
                with suppress(OSError, ValueError):  # a file that cannot be read counts by its name
                    data[section][field] = hashlib.sha256(Path(data[section][field]).read_bytes()).hexdigest()
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """JSON schema of the TOML file, for editors; lists every channel and harvest source of the catalogs."""
        whole = cls.model_json_schema()
        del whole["required"]  # `parse` has a default for every section
        whole["properties"] |= {section: {"oneOf": []} for section in schema.SOURCES}
        for section, name, settings in schema.of_sources():
            source, title = settings.model_json_schema(), f"{section.capitalize()}_{name}"
            whole["$defs"] |= source.pop("$defs", {}) | {title: source}
            whole["properties"][section]["oneOf"].append({"$ref": f"#/$defs/{title}"})
        return whole


def _tables() -> dict[str, type[Section]]:
    """The settings of every table of a scenario; of those with sources, what all sources have."""
    fields = {name: field.annotation for name, field in Scenario.model_fields.items()}
    return {name: kind for name, kind in fields.items() if isinstance(kind, type) and issubclass(kind, Section)}


def _source_class(section: str, data: Mapping[str, Any]) -> type[Section]:
    """The settings of the source that a table names, or of the default one."""
    package, _, default = schema.SOURCES[section]
    source = data.get("source", default)
    if not isinstance(source, str):
        raise ScenarioError(f"{section}.source", one_of(catalog.names(package), "value", source))
    return schema.source_settings(section, source)


def sections() -> dict[str, type[Section]]:
    """The settings of every table by its heading: ``network``, or ``harvest, source = "solar"``."""
    fixed = {name: settings for name, settings in _tables().items() if name not in schema.SOURCES}
    return fixed | {f'{section}, source = "{name}"': settings for section, name, settings in schema.of_sources()}


def parse_override(text: str, flag: str) -> tuple[str, Any]:
    """Split ``path=value`` given to a flag of the command line; the value is read as TOML, else taken as a string."""
    path, sign, raw = text.partition("=")
    refuse(not sign or not all(part.strip() for part in path.split(".")), flag, "path=value", f"value {text!r}")
    try:
        return path.strip(), tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        return path.strip(), raw.strip()


def _set_path(data: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for depth, key in enumerate(parents):
        inner = data.setdefault(key, {})
        if not isinstance(inner, dict):
            table = ".".join(parents[: depth + 1])
            raise ScenarioError(path, f"a table of settings at {table!r}", f"value {shortened(inner)}")
        data = inner
    if last == "source" and data.get("source") != value:
        data.clear()  # another source has other settings
    data[last] = value
