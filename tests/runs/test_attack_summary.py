"""What attacks came to, in numbers, from rows that are written down here."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from page_fixtures import made_run, saved
from smoothcert.errors import ConfigError
from smoothcert.runs.attack_summary import (
    Outcome,
    expected_violations,
    is_success,
    is_violation,
    outcomes,
    perturbation_norms,
    robust_at_most,
    summarize_attack,
    table_radii,
    violations,
)
from smoothcert.runs.directory import Run
from smoothcert.runs.manifest import Manifest

PACKED = {"shape": [1], "float32": "eJw="}


def attempt(attack, factor, label, norm):
    return {"attack": attack, "factor": factor, "label": label, "norm": norm, "stages": []}


def attack_row(index, *attempts, label=1, radius=0.5):
    return {"index": index, "true": label, "label": label, "radius": radius, "noise": "grid", "attempts": [*attempts]}


def attack_run(rows, *, factors=(1.0, 2.0), attacks=("paper", "ddn"), alpha=0.01, certified_alpha=0.001, total=None):
    values = {
        "format": 1,
        "kind": "attack",
        "sigma": 0.5,
        "alpha": alpha,
        "procedure": {"name": "SequentialPredict"},
        "attacks": list(attacks),
        "factors": list(factors),
        "attacked": {"run": "ab", "alpha": certified_alpha, "source": "run"},
        "model": {"num_classes": 3},
        "indices": list(range(total or len(rows))),
    }
    return Run(Path("attacked"), Manifest(values), rows)


def rows():
    """Of three inputs: all kept; one changed beyond R and one abstention; one changed within R, once as far as 2 R."""
    kept = [attempt(a, f, 1, 0.9 * f * 0.5) for a in ("paper", "ddn") for f in (1.0, 2.0)]
    changed = [attempt("paper", 1.0, 1, 0.45), attempt("paper", 2.0, 0, 0.95)]
    changed += [attempt("ddn", 1.0, None, 0.49), attempt("ddn", 2.0, 2, 0.5)]  # 0.5 is not less than R
    violated = [{**attempt("paper", 1.0, 2, 0.4999), "point": PACKED}, attempt("paper", 2.0, 0, 0.9)]
    violated += [attempt("ddn", 1.0, 1, 0.3), {**attempt("ddn", 2.0, 2, 0.3), "point": PACKED}]
    return [attack_row(0, *kept), attack_row(1, *changed), attack_row(2, *violated)]


def test_outcomes_are_counted_by_attack_and_factor():
    assert outcomes(attack_run(rows())) == [
        Outcome("paper", 1.0, 3, 1, 0, 1),
        Outcome("paper", 2.0, 3, 2, 0, 0),
        Outcome("ddn", 1.0, 3, 0, 1, 0),
        Outcome("ddn", 2.0, 3, 2, 0, 1),
    ]


def test_inputs_that_failed_are_no_attempts():
    found = outcomes(attack_run([*rows(), {"index": 3, "true": 1, "error": "OSError: gone"}]))
    assert {one.attempts for one in found} == {3}
    assert outcomes(attack_run([], total=4)) == [
        Outcome(attack, factor, 0, 0, 0, 0) for attack in ("paper", "ddn") for factor in (1.0, 2.0)
    ]


def test_violations_hold_all_that_is_needed_to_see_them_again():
    found = violations(attack_run(rows()))
    assert [(one.index, one.attack, one.factor, one.norm) for one in found] == [
        (2, "paper", 1.0, 0.4999),
        (2, "ddn", 2.0, 0.3),
    ]
    assert [(one.radius, one.label, one.answer, one.point) for one in found] == [(0.5, 1, 2, PACKED)] * 2


@pytest.mark.parametrize(
    ("label", "distance", "success", "violation"),
    [(1, 0.1, False, False), (None, 0.1, False, False), (0, 0.1, True, True), (0, 0.5, True, False)],
)
def test_only_another_class_is_a_success_and_only_below_the_radius_a_violation(label, distance, success, violation):
    one = attempt("paper", 1.0, label, distance)
    assert is_success(one, 1) is success
    assert is_violation(one, 1, 0.5) is violation


@pytest.mark.parametrize(("k", "n"), [(0, 1), (0, 30), (1, 3), (7, 20), (20, 20)])
def test_intervals_are_those_of_clopper_and_pearson(k, n):
    low, high = Outcome("paper", 1.0, n, k, 0, 0).interval
    exact = binomtest(k, n).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx((exact.low, exact.high), rel=1e-8, abs=1e-12)
    assert low <= exact.low + 1e-15  # rounded outward
    assert high >= exact.high - 1e-15


def test_certificates_and_judges_may_each_be_wrong_by_chance():
    """A union bound: each input's certificate once, and each judge of an attempt that must fail."""
    run = attack_run(rows(), factors=(0.5, 1.0, 2.0), attacks=("paper", "ddn"), alpha=0.01, certified_alpha=0.002)
    assert expected_violations(run) == pytest.approx(3 * (0.002 + 4 * 0.01))
    only_beyond = attack_run(rows(), factors=(2.0,), attacks=("paper",), alpha=0.01, certified_alpha=0.002)
    assert expected_violations(only_beyond) >= 3 * 0.002


# ---- the base classifier -------------------------------------------------------------------------------------------


def base_run(rows, total=None):
    values = {
        "format": 1,
        "kind": "attack-base",
        "sigma": 0.0,
        "alpha": 0.0,
        "procedure": {"name": "attack"},
        "attacks": ["deepfool", "pgd"],
        "model": {"num_classes": 3},
        "indices": list(range(total or len(rows))),
    }
    return Run(Path("undefended"), Manifest(values), rows)


def base_row(index, deepfool, pgd):
    found = [norm for norm in (deepfool, pgd) if norm is not None]
    norms = {"deepfool": deepfool, "pgd": pgd}
    return {"index": index, "true": 1, "label": 1, "norm": min(found, default=None), "norms": norms}


BASE = [base_row(0, 0.5, 0.4), base_row(1, 0.0, 0.0), base_row(2, None, None), base_row(3, None, 0.6)]
FAILED = {"index": 4, "true": 1, "error": "OSError: gone"}


def test_norms_are_infinite_where_nothing_was_found_or_the_input_failed():
    run = base_run([*BASE, FAILED])
    assert perturbation_norms(run).tolist() == [0.4, 0.0, math.inf, 0.6, math.inf]
    assert perturbation_norms(run, "deepfool").tolist() == [0.5, 0.0, math.inf, math.inf, math.inf]
    assert perturbation_norms(run, "pgd").tolist() == [0.4, 0.0, math.inf, 0.6, math.inf]
    assert perturbation_norms(run).dtype == np.float64


def test_norms_of_an_attack_that_was_not_made_are_refused():
    with pytest.raises(ConfigError, match="ddn"):
        perturbation_norms(base_run(BASE), "ddn")


@pytest.mark.parametrize(
    ("rows", "median"),
    [
        (BASE, 0.6),  # of 0.4, ∞ and 0.6
        (BASE[:2], 0.4),
        (BASE[1:2], 0.0),
        (BASE[1:3], None),
        ([BASE[0], BASE[2]], None),  # half of them have none
    ],
)
def test_the_median_is_that_of_the_inputs_that_were_right(rows, median):
    found = summarize_attack(base_run(rows))
    assert found["correct"] == sum(row["norm"] != 0 for row in rows)
    assert found["median_norm"] == median


def test_inputs_that_failed_are_not_counted_as_right():
    found = summarize_attack(base_run([*BASE, FAILED]))
    assert (found["rows"], found["errors"], found["correct"]) == (5, 1, 3)
    assert found["median_norm"] == 0.6


# ---- as JSON, and without torch ------------------------------------------------------------------------------------


def test_a_summary_is_json_and_says_what_was_violated():
    run = attack_run([*rows(), {"index": 3, "true": 1, "error": "OSError: gone"}], total=9)
    found = json.loads(json.dumps(summarize_attack(run), allow_nan=False))
    assert {name: found[name] for name in ("kind", "inputs", "rows", "errors", "violated")} == {
        "kind": "attack",
        "inputs": 9,
        "rows": 4,
        "errors": 1,
        "violated": [2],
    }
    assert found["expected_violations"] == expected_violations(run)
    assert found["outcomes"][0] == {
        "attack": "paper",
        "factor": 1.0,
        "attempts": 3,
        "successes": 1,
        "abstentions": 0,
        "violations": 1,
    }


@pytest.mark.parametrize("function", [outcomes, violations, perturbation_norms])
def test_runs_of_another_kind_are_refused(function):
    other = base_run(BASE) if function is not perturbation_norms else attack_run(rows())
    for run in (other, made_run("paper", 3), made_run("sequential", 3)):
        with pytest.raises(ConfigError, match=f"Expected a run of `smoothcert attack.*{run.manifest.kind!r}"):
            function(run)


def test_reading_an_attack_needs_no_torch(tmp_path):
    saved(attack_run(rows()), tmp_path / "run")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from smoothcert import runs\n"
        "from smoothcert.runs.attack_summary import summarize_attack\n"
        "print(summarize_attack(runs.open(sys.argv[1]))['violated'])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[2]"


# ---- what a table of robust accuracy may say -------------------------------------------------------------------------


def test_robust_accuracy_bounds_from_above_at_the_radius_that_is_printed():
    """Rounded to two digits, 0.4996 would be printed as 0.50, and 66.7 % said of a radius at which it is 0."""
    norms = np.array([0.4996, 0.4999, 0.0])
    for radius in table_radii(norms):
        assert radius == round(radius, 3), "a radius that is printed whole"
        assert robust_at_most(norms, radius) == np.mean(norms > radius)
    assert table_radii(norms)[0] == 0.0
    assert table_radii(norms)[-1] >= 0.4999
    assert robust_at_most(norms, table_radii(norms)[-1]) == 0.0


@pytest.mark.parametrize("norms", [[0.0], [np.inf], [], [3e-7, 1e-9], [12.3, 45.6], [7.0], [0.7]])
def test_the_radii_of_the_table_are_few_digits_from_0_to_beyond_the_largest(norms):
    radii = table_radii(np.array(norms, np.float64))
    finite = [norm for norm in norms if np.isfinite(norm)]
    assert len(radii) == 8
    assert radii[0] == 0.0 < radii[1]
    assert max(finite, default=0.0) <= radii[-1]
    assert all(len(repr(radius)) <= 8 for radius in radii)
