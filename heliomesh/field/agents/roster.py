"""The members of a network and the keys that were revoked: a numbered list that the network's authority signs.

Who is not on it is no member. The list with the highest number counts.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from heliomesh.field.agents.identity import Identity, authority_signed
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.section import Section, validated

ROSTER = "roster.txt"
Member = Annotated[str, Field(pattern=r"^(\d{1,9}|watch)$")]
PublicKey = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Roster(Section):
    """Who is a member."""

    number: Annotated[int, Field(ge=0)] = 0
    keys: dict[Member, PublicKey] = Field({})
    revoked: tuple[PublicKey, ...] = Field((), strict=False)

    def admitting(self, keys: Mapping[str, str]) -> "Roster":
        """The next list, with other keys for some members; the ones before are revoked."""
        before = [old for name, old in self.keys.items() if keys.get(name, old) != old]
        return Roster(number=self.number + 1, keys={**self.keys, **keys}, revoked=(*self.revoked, *before))

    def without(self, names: Iterable[str]) -> "Roster":
        """The next list, without some members."""
        gone = {name: self.keys[name] for name in names}
        left = {name: key for name, key in self.keys.items() if name not in gone}
        return Roster(number=self.number + 1, keys=left, revoked=(*self.revoked, *gone.values()))

    def signed(self, authority: Identity) -> bytes:
        """As a file: the signature, and below it the list."""
        text = self.model_dump_json().encode()
        return authority.sign(text).hex().encode() + b"\n" + text


def roster_of(content: bytes, authority: Path) -> Roster:
    """Read a list; raises ScenarioError for one that the authority did not sign."""
    signature, _, text = content.partition(b"\n")
    try:
        if not authority_signed(authority, text, bytes.fromhex(signature.decode("ascii"))):
            raise ValueError
        return validated(Roster, json.loads(text), ROSTER)
    except ScenarioError:
        raise
    except (ValueError, RecursionError):
        raise ScenarioError(ROSTER, f"expected a list that {authority.name} signed, actual: it is not") from None
