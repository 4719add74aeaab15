"""Why stored results do not serve: which part of them changed although the same was asked for."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from heliomesh.jobs.job import STEPS, Job, Step, request
from heliomesh.learning.same_run import told_difference


@dataclass(frozen=True)
class Earlier:
    """Results that a store held when somebody first asked for one that was not there.

    Attributes
    ----------
    folder
        Of the store.
    identities
        Gives what decided its results of a step, from old to new.
    """

    folder: Path
    identities: Callable[[Step], Iterable[Mapping[str, Any]]]
    _told: set[tuple[str, str, str]] = field(default_factory=set)

    def tell_changed(self, absent: Sequence[Job], step: Step, notify: Callable[[str], None]) -> None:
        """Say in one line which part changed of results that were stored for the same requests; each part once."""
        if not absent:
            return
        pairs = [(self._by_request[step].get(request(job.identity(step))), job.identity(step)) for job in absent]
        found = Counter(told_difference(before, now) for before, now in pairs if before is not None)
        for difference, count in found.items():
            if difference is not None and difference not in self._told:
                self._told.add(difference)
                part, before, now = difference
                noun = f"{step} is" if count == 1 else f"{step}s are"
                notify(f"{self.folder}: {count} stored {noun} not used: {part} was {before}, now {now}")

    @cached_property
    def _by_request(self) -> dict[Step, dict[str, Mapping[str, Any]]]:
        """What decided stored results by what was asked for, the newest where there are several."""
        return {step: {request(one): one for one in self.identities(step)} for step in STEPS}
