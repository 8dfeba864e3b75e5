"""What the numbers of a run are about: the inputs that were certified, and the radii that were tested."""

from __future__ import annotations

from collections.abc import Sequence

from smoothcert.records import exact_decimal
from smoothcert.runs.directory import Run
from smoothcert.stats.bounds import clopper_pearson_upper
from smoothcert.stats.radii import margin_radius

_ROUNDING = 1e-9  # relative, far above the rounding of a radius


# Radii


def radii_tested(run: Run) -> tuple[float, ...] | None:
    """The radii that a grid run tested, in ascending order; None for a run that finds a radius per input."""
    procedure = run.manifest.values["procedure"]
    return tuple(procedure["radii"]) if procedure.get("radii") else None


def is_decided(run: Run, radius: float) -> bool:
    """Whether the run says which inputs are certified at `radius`.

    A grid run decides the radii that it tested, and those that its draws cannot certify for any input.
    """
    tested = radii_tested(run)
    return tested is None or radius in tested or radius > largest_possible_radius(run)


def largest_possible_radius(run: Run) -> float:
    """A radius that no certificate of a grid run exceeds: σ·Φ⁻¹(α^(1/n)) for its largest number of draws n.

    A test of radius σz that can accept at all accepts when no draw fails. If the claim is false by a hair and only two
    classes occur, a draw fails with probability Φ(−z), whether or not the rival's votes are counted, so the test
    accepts with probability Φ(z)ⁿ or more. That must be at most its level: α, or α/2 with the rival's votes. A margin
    m adds Φ⁻¹((1 + m)/2) to z.
    """
    values = run.manifest.values
    unanimous = clopper_pearson_upper(0, values["procedure"]["n_max"], values["alpha"])
    return float(margin_radius(unanimous, sigma=run.sigma, margin=certified_margin(run))) * (1 + _ROUNDING)


# Margins


def certified_margin(run: Run) -> float:
    """The lead in probability that the class keeps within the run's radii; of an attack, within those it attacks."""
    values = run.manifest.values
    claim = values["attacked"] if run.manifest.kind == "attack" else values["procedure"]
    return float(claim.get("margin", 0.0))


def margin_in_words(run: Run) -> str:
    """What the radii of a run with a margin mean; empty for a run without one."""
    margin = certified_margin(run)
    if margin == 0:
        return ""
    return f"within its radius, a class leads every other class by at least {exact_decimal(margin)} in probability"


# Inputs


def inputs_in_words(run: Run) -> str:
    """Which inputs of the data the rows are about, such as "every 20th of 10,000 inputs".

    A rule is named only if it gives exactly the indices of the rows. Any other choice is called a choice, since nothing
    follows from it about the rest of the data.
    """
    indices = sorted(row["index"] for row in run.rows)
    total = run.manifest.values.get("data", {}).get("inputs")
    if not indices:
        return "no inputs"
    if total is None:
        return _of_unknown_data(indices)
    if len(set(indices)) < len(indices) or indices[-1] >= total:
        return f"{_inputs(len(indices))} whose indices do not fit data of {_inputs(total)}"
    if len(indices) == total:
        return f"all {_inputs(total)}" if total > 1 else "the only input"
    step, start = _step(indices), indices[0]
    if step == 1 and start == 0:
        return f"the first {len(indices):,} of {_inputs(total)}"
    # Any two indices have a constant step: a rule needs three to show.
    is_rule = step > 1 and start < step and len(indices) > 2
    if is_rule and indices[-1] + step >= total:
        return f"every {_ordinal(step)} of {_inputs(total)}" + (f", from index {start:,}" if start else "")
    if is_rule and start == 0:
        return f"the first {len(indices):,} when taking every {_ordinal(step)} of {_inputs(total)}"
    return f"{len(indices):,} chosen {'input' if len(indices) == 1 else 'inputs'}: not a sample of the {total:,}"


def _of_unknown_data(indices: Sequence[int]) -> str:
    """The same where the size of the data is not recorded, as in an imported log."""
    step = _step(indices)
    if step == 0 or len(indices) < 3 or indices[0] >= step:
        return f"{_inputs(len(indices))}, chosen by a rule that is not recorded"
    rule = "indices" if step == 1 else f"every {_ordinal(step)} index"
    return (
        f"{_inputs(len(indices))}, {rule} from {indices[0]:,} to {indices[-1]:,}; the size of the data is not recorded"
    )


def _step(indices: Sequence[int]) -> int:
    """The difference between neighbours, 1 for a single index; 0 if it varies."""
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    regular = list(indices) == list(range(indices[0], indices[0] + step * len(indices), step)) if step > 0 else False
    return step if regular else 0


def _inputs(count: int) -> str:
    return f"{count:,} input" if count == 1 else f"{count:,} inputs"


def _ordinal(number: int) -> str:
    """An ordinal number in English.

    >>> [_ordinal(number) for number in (2, 3, 11, 21, 112)]
    ['2nd', '3rd', '11th', '21st', '112th']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
