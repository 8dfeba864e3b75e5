"""What votes would certify with other numbers of draws or failure probabilities: projections, not certificates.

Another n: the shares of the votes are taken to stay what they are, as in Cohen et al. 2019, Section 4. Nothing was
drawn, so nothing is guaranteed. Another α: the bounds are computed anew from the votes as they are. That is what
CERTIFY would have returned, but it is a certificate only for an α that was settled before the votes were seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from smoothcert.checks import check_alpha, check_count
from smoothcert.errors import ConfigError
from smoothcert.records import Certificate
from smoothcert.runs.directory import Run
from smoothcert.stats.bounds import clopper_pearson_upper
from smoothcert.stats.radii import cohen_radius, margin_radius

_MOST_DRAWS = 10**9  # products of two such numbers fit into int64
_PROCEDURES = ("FixedN", "Planned")  # the last draws are a fixed number of fresh ones

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SettledVotes:
    """Votes of draws that were made after the class was settled, by input; inputs without such draws have n = 0.

    `own` are the votes for the class and `rival` the most that anything else got; the latter is None where votes were
    recovered from radii. `correct` tells whether the class is the true one, or, without labels, whether there is one.
    """

    n: Counts
    own: Counts
    rival: Counts | None
    correct: npt.NDArray[np.bool_]


def settled_votes(run: Run) -> SettledVotes:
    """The votes that a run's bounds rest on, or those that a log's radii come from."""
    if run.manifest.kind == "import":
        return _recovered(run)
    name = run.manifest.values["procedure"].get("name")
    if run.predicts or name not in _PROCEDURES:
        raise ConfigError(
            f"The votes of {run.path} cannot be projected: {name} does not draw a fixed number for its bounds. Give a "
            "run of `smoothcert certify --procedure paper` or `planned`, or a file of votes."
        )
    if not run.rows:
        raise ConfigError(f"Expected rows in {run.path}, there are none yet.")
    counted = [_settled(result) for result in run.certificates]
    n, own, rival, label = np.array(counted, np.int64).T
    truths = [row["true"] for row in run.rows]
    return SettledVotes(n, own, rival, _correct(label, truths))


def _settled(result: object) -> tuple[int, int, int, int]:
    """Draws, votes for the class, most votes for another, class; all 0 and class −1 where nothing was settled."""
    if not isinstance(result, Certificate) or result.bounds.label is None or len(result.stages) < 2:
        return 0, 0, 0, -1
    votes, label = result.stages[-1], result.bounds.label
    return votes.n, votes.counts[label], votes.rival(label), label


def _correct(labels: Counts, truths: list[int | None]) -> npt.NDArray[np.bool_]:
    if all(truth is None for truth in truths):
        return labels >= 0
    return np.array(
        [label >= 0 and label == truth for label, truth in zip(labels.tolist(), truths, strict=True)], np.bool_
    )


def _recovered(run: Run) -> SettledVotes:
    """Votes of a log, which has radii only: for each radius the number of votes whose own radius comes closest."""
    draws = run.manifest.values["procedure"].get("n")
    if run.predicts or draws is None:
        raise ConfigError(
            f"{run.path} is a log without votes. To project it, its radii and its number of draws must be known: "
            "import a log of CERTIFY with `smoothcert import --n N`."
        )
    table = run.table()
    labels = np.array([-1 if label is None else label for label in table["label"]], np.int64)
    radii = np.array(table["radius"])
    own = _closest_votes(radii, draws, run.manifest.values["alpha"], run.sigma)
    n = np.where(labels >= 0, draws, 0)
    return SettledVotes(n, np.where(labels >= 0, own, 0), None, _correct(labels, table["true"]))


def _closest_votes(radii: Floats, n: int, alpha: float, sigma: float) -> Counts:
    """For each radius the votes out of n that give the nearest one; printed radii are rounded to either side."""
    low, high = np.full(radii.shape, n // 2), np.full(radii.shape, n)

    def radius(own: Counts) -> Floats:
        return np.asarray(cohen_radius(clopper_pearson_upper(n - own, n, alpha), sigma=sigma))

    while np.any(high - low > 1):  # the radius grows with the votes
        middle = (low + high) // 2
        below = radius(middle) <= radii
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(radii - radius(low) <= np.abs(radius(high) - radii), low, high)


def projected_radii(
    votes: SettledVotes,
    *,
    sigma: float,
    alpha: float,
    n: int | None = None,
    runner_up: bool = False,
    margin: float = 0.0,
) -> Floats:
    """The radius of each input as CERTIFY would find it at `alpha`, were there `n` draws with the same shares of votes.

    Shares that do not come out even are rounded to the weak side. Without `n` the votes are taken as they are. With
    `runner_up` half of alpha bounds the rival, as in `FixedN`, and with a `margin` radii are those of `margin_radius`.
    """
    check_alpha(alpha)
    settled = votes.n > 0
    drawn = np.where(settled, votes.n, 1)
    total = drawn if n is None else np.full(drawn.shape, check_count("n", n, most=_MOST_DRAWS))
    failures = total - votes.own * total // drawn
    level = alpha / 2 if runner_up else alpha
    q_a = clopper_pearson_upper(failures, total, level)
    p_b = None
    if runner_up and votes.rival is not None:
        p_b = clopper_pearson_upper(-(-votes.rival * total // drawn), total, level)
    return np.where(settled, margin_radius(q_a, p_b, sigma=sigma, margin=margin), 0.0)


def bounds_rival(run: Run) -> bool:
    """Whether a run's CERTIFY bounds the rival too. Planned runs are projected as the paper's, which does not."""
    return bool(run.manifest.values["procedure"].get("runner_up", False))
