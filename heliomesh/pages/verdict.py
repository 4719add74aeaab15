"""What a page says first: which scheme is best, by how much, and how certain that is.

The best scheme loses the fewest updates; where no costs are known, it is the most accurate. Differences are paired,
and one that too few pairs or too wide an interval leave open is called not certain.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from heliomesh.pages.seed_by_seed import is_told

_BASELINE = "uncoordinated"  # whoever coordinates nothing is what coordination is measured against
_MOST_RIVALS = 3  # named one by one

Facts = Mapping[str, Any]
Paired = Sequence[Sequence[Facts | None]]  # by reference and scheme, as `differences` gives them


class _Measure(NamedTuple):
    """What is compared."""

    name: str  # in differences
    pairs: str  # in differences: how many were compared
    sign: int  # 1 where more is better
    factor: float
    digits: int


_COST = _Measure("cost", "episodes", -1, 1.0, 3)
_ACCURACY = _Measure("accuracy", "seeds", 1, 100.0, 2)


class Verdict(NamedTuple):
    """Sentences, and the schemes that they are about."""

    sentence: str
    details: str
    best: int | None
    reference: int | None
    measure: str  # by which the best was found


def answer(schemes: Sequence[Facts], paired: Paired) -> Verdict:
    """The answer of a page with these schemes."""
    reference = _reference(schemes, paired)
    if reference is None:
        return Verdict(_without_comparison(schemes), "", None, None, _COST.name)
    measure = _COST if any(_known(row, _COST) for row in paired[reference]) else _ACCURACY
    best = _best(paired, reference, measure)
    against = reference if best != reference else _best(paired, reference, measure, without=reference)
    lead, labels = paired[against][best], [scheme["label"] for scheme in schemes]
    if lead is None or not _known(lead, measure):
        return Verdict(_without_comparison(schemes), "", None, reference, measure.name)
    details = [_rivals(labels, paired[best], measure, against)]
    details += [_accuracies(labels, paired, best, against)] if measure is _COST else []
    return Verdict(
        _lead(labels[best], labels[against], lead, measure),
        " ".join(sentence for sentence in details if sentence),
        best,
        against,
        measure.name,
    )


def _reference(schemes: Sequence[Facts], paired: Paired) -> int | None:
    """The baseline, if something is compared with it, else the first scheme with which something is."""
    usable = [index for index, row in enumerate(paired) if any(row)]
    return next((index for index in usable if schemes[index]["planner"] == _BASELINE), next(iter(usable), None))


def _known(row: Facts | None, measure: _Measure) -> bool:
    return row is not None and math.isfinite(row[measure.name]["mean"])


def _best(paired: Paired, reference: int, measure: _Measure, without: int | None = None) -> int:
    """The best scheme by its paired difference to the reference, which itself differs by zero."""
    gains: dict[int, float] = {reference: 0.0} | {
        index: measure.sign * row[measure.name]["mean"]
        for index, row in enumerate(paired[reference])
        if row is not None and _known(row, measure)
    }
    return max((index for index in gains if index != without), key=gains.__getitem__)


def _spread(fact: Facts, measure: _Measure, *, signed: bool = True) -> str:
    """A difference and its interval, such as +0.31 ± 0.04; without a sign where words give the direction."""
    mean = measure.factor * fact["mean"]
    text = f"{mean:+.{measure.digits}f}".replace("-", "−") if signed else f"{abs(mean):.{measure.digits}f}"
    if not math.isfinite(fact["half"]):
        return text
    return f"{text}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{measure.factor * fact['half']:.{measure.digits}f}"


def _basis(row: Facts, measure: _Measure) -> str:
    """On how many pairs a difference rests, and whether they tell it from zero."""
    count, kind = row[measure.pairs], "episode" if row["episodes"] != row["seeds"] and measure is _COST else "seed"
    pairs = f"{count} common {kind}{'' if count == 1 else 's'}"
    if is_told(row[measure.name], count):
        return f"95 % interval, {pairs}"
    return f"{pairs}: not certain"


def _lead(best: str, against: str, row: Facts, measure: _Measure) -> str:
    size, basis = _spread(row[measure.name], measure, signed=False), _basis(row, measure)
    if row[measure.name]["mean"] == 0:
        return f"{best} and {against} do not differ ({basis})."
    if measure is _ACCURACY:
        return f"{best} is best: its devices are {size} percentage points more accurate than {against} ({basis})."
    return f"{best} is best: it loses {size} fewer updates per slot than {against} ({basis})."


def _rivals(labels: Sequence[str], against_best: Sequence[Facts | None], measure: _Measure, told: int) -> str:
    """Schemes that the data do not tell apart from the best one, nearest first; ``told`` was spoken of before."""
    open_rows = {
        labels[index]: row[measure.name]
        for index, row in enumerate(against_best)
        if row is not None
        and index != told
        and _known(row, measure)
        and not is_told(row[measure.name], row[measure.pairs])
    }
    nearest = sorted(open_rows, key=lambda label: abs(open_rows[label]["mean"]))
    named = [f"{label} ({_spread(open_rows[label], measure)})" for label in nearest[:_MOST_RIVALS]]
    more = [f"{len(nearest) - _MOST_RIVALS} more"] if len(nearest) > _MOST_RIVALS else []
    return f"Not told apart from it: {', '.join([*named, *more])}." if named else ""


def _accuracies(labels: Sequence[str], paired: Paired, best: int, against: int) -> str:
    """Whether the plan that loses the fewest updates also leads to the best models."""
    row = paired[against][best]
    if row is None or not _known(row, _ACCURACY):
        return ""
    points, basis = _spread(row["accuracy"], _ACCURACY), _basis(row, _ACCURACY)
    sentence = f"Accuracy of its devices at the end: {points} points against {labels[against]} ({basis})."
    top = _best(paired, best, _ACCURACY)
    lead = paired[best][top]
    if top in (best, against) or lead is None:
        return sentence
    more = f"{_spread(lead['accuracy'], _ACCURACY)} points against {labels[best]} ({_basis(lead, _ACCURACY)})"
    return f"{sentence} Most accurate: {labels[top]}, {more}."


def _without_comparison(schemes: Sequence[Facts]) -> str:
    """One scheme's own numbers; several that share no seeds cannot be ranked."""
    if len(schemes) > 1:
        return f"The {len(schemes)} schemes share no finished runs of one scenario and seed: they are not ranked."
    (scheme,) = schemes
    headline, parts = scheme["headline"], []
    if headline["cost"] is not None:
        cost = _spread(headline["cost"], _COST, signed=False)
        parts.append(f"loses {cost} updates per slot")
    if headline["accuracy_mean"] is not None:
        parts.append(f"reaches {_spread(headline['accuracy_mean'], _ACCURACY, signed=False)} % accuracy")
    return f"{scheme['label']} {' and '.join(parts)}." if parts else f"Nothing is known of {scheme['label']} yet."
