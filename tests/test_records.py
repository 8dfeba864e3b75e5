import json
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from smoothcert.records import (
    NO_RADIUS,
    Bounds,
    Certificate,
    Prediction,
    Votes,
    ceil_decimal,
    floor_decimal,
    floor_float32,
    radius_text,
)
from soundness import check_rounding

COMMON = {
    "label": 3,
    "alpha": 0.001,
    "sigma": 0.25,
    "noise": "grid",
    "procedure": {"name": "FixedN", "n": 1000, "n0": 100, "alpha": 0.001, "runner_up": True},
    "stages": (Votes((1, 0, 0, 98), invalid=1, ties=2), Votes((5, 0, 5, 990))),
    "key": "00ff",
    "input_id": "17",
}
CERTIFICATE = Certificate(**COMMON, radius=0.49999999999999994, bounds=Bounds(3, 0.02275013194817922, 0.01))
PREDICTION = Prediction(**COMMON, p_value=1.2345678901234567e-300)


# ---- votes -------------------------------------------------------------------------------------------------------


def test_votes_count_every_draw():
    assert Votes((3, 4, 0), invalid=2, ties=1).n == 9, "draws without an answer are draws, ties are counted already"
    assert Votes((0, 0)).n == 0


def test_votes_come_from_numpy_rows_as_plain_integers():
    votes = Votes.of(np.array([3, 4], np.int32), np.int64(1))
    assert votes == Votes((3, 4), 1)
    assert all(type(value) is int for value in (*votes.counts, votes.invalid, votes.ties))


def test_the_leader_is_the_lowest_class_with_the_most_votes():
    assert Votes((1, 5, 5)).leader == 1
    assert Votes((0, 0, 2)).leader == 2
    assert Votes((1, 0), invalid=100).leader == 0, "no answer is not a class"


@pytest.mark.parametrize("votes", [Votes((0, 0)), Votes((0, 0), invalid=10), Votes(())])
def test_without_votes_nobody_leads(votes):
    assert votes.leader is None


def test_the_rival_is_the_largest_other_with_no_answer_as_one():
    assert Votes((5, 3, 4)).rival(0) == 4
    assert Votes((5, 3, 4)).rival(1) == 5
    assert Votes((5, 5, 0)).rival(0) == 5
    assert Votes((5, 3, 4), invalid=7).rival(0) == 7
    assert Votes((5,), invalid=2).rival(0) == 2


def test_votes_add_up():
    assert Votes((1, 2), 3, 4) + Votes((10, 20), 30, 40) == Votes((11, 22), 33, 44)
    with pytest.raises(ValueError, match="2 and 3 classes"):
        Votes((1, 2)) + Votes((1, 2, 3))


# ---- certificates and predictions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        CERTIFICATE,
        PREDICTION,
        Certificate(**{**COMMON, "label": None}, radius=0.0, bounds=Bounds(None)),
        Prediction(**{**COMMON, "label": None, "stages": ()}, p_value=1.0),
    ],
)
def test_a_record_survives_json_unchanged(record):
    text = json.dumps(record.to_dict(), allow_nan=False)
    again = type(record).from_dict(json.loads(text))
    assert again == record
    assert again.to_dict() == record.to_dict()


def test_a_record_of_version_0_1_is_read():
    values = CERTIFICATE.to_dict()
    for stage in values["stages"]:
        stage["coin"] = None  # version 0.1 had a random number here for randomized bounds
    assert Certificate.from_dict(values) == CERTIFICATE


def test_a_record_adds_up_its_stages():
    assert CERTIFICATE.draws == 1100
    assert CERTIFICATE.invalid == 1
    assert not CERTIFICATE.abstained
    assert Prediction(**{**COMMON, "label": None}, p_value=1.0).abstained


def test_changing_what_to_dict_gave_does_not_change_the_record():
    values = CERTIFICATE.to_dict()
    values["procedure"]["alpha"] = 0.4
    values["stages"][0]["counts"][0] = 10**6
    assert CERTIFICATE.procedure["alpha"] == 0.001
    assert CERTIFICATE.stages[0].counts == (1, 0, 0, 98)


def test_a_certificate_reads_as_a_sentence_and_never_rounds_its_radius_up():
    text = repr(CERTIFICATE)
    assert "class 3 certified within L2 radius 0.4999;" in text
    assert "0.5000" not in text
    for part in ("α = 0.001", "σ = 0.25", "grid", "FixedN", "100 + 1,000", "without an answer 1"):
        assert part in text
    assert "00ff" not in text, "the key is not for reading"


def test_an_abstention_says_so():
    certificate = Certificate(**{**COMMON, "label": None}, radius=0.0, bounds=Bounds(None))
    assert "abstains, nothing certified" in repr(certificate)
    assert "class" not in repr(certificate)
    assert "abstains" in repr(Prediction(**{**COMMON, "label": None}, p_value=1.0))
    assert "<Prediction: class 3;" in repr(PREDICTION)


def test_html_is_escaped():
    nasty = {**COMMON, "noise": "<script>alert(1)</script>", "procedure": {"name": 'a"&b'}}
    html = Prediction(**nasty, p_value=0.5)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "a&quot;&amp;b" in html
    assert html.startswith("<table>")
    assert html.endswith("</table>")
    assert "radius 0.4999<" in CERTIFICATE._repr_html_()


def test_records_cannot_be_changed():
    for record, name in ((CERTIFICATE, "radius"), (PREDICTION, "p_value"), (Votes((1,)), "invalid")):
        with pytest.raises(AttributeError):
            setattr(record, name, 5)


@pytest.mark.parametrize("q", [0.0, 1e-300, 1e-17, 1e-3, 1 / 3, 0.5, 1.0])
def test_the_lower_bound_for_reading_is_never_above_the_exact_one(q):
    value = Bounds(0, q_a_upper=q).p_a_lower
    assert value >= 0
    assert Fraction(value) <= 1 - Fraction(q)
    assert 1 - Fraction(q) - Fraction(value) <= Fraction(1, 2**51)


# ---- rounding down -----------------------------------------------------------------------------------------------


def values():
    rng = np.random.default_rng(38)
    yield from [
        0.0,
        5e-324,
        1e-310,
        0.0005,
        0.29,
        0.4999,
        0.5,
        1 - 2**-53,
        1.0005,
        3.811456563142805,
        1e6 + 0.1,
        2.0**60,
    ]
    yield from rng.uniform(0, 5, 60_000).tolist()
    yield from (10 ** rng.uniform(-12, 6, 30_000)).tolist()
    # Right at, just below and just above what three decimals can say.
    steps = rng.integers(0, 10_000, 4_000) / 1000
    yield from [*steps.tolist(), *np.nextafter(steps, -1).clip(0).tolist(), *np.nextafter(steps, 99).tolist()]


@pytest.mark.parametrize("places", [0, 2, 3, 4])
def test_a_printed_number_is_never_above_and_less_than_one_unit_below(places):
    unit, checked = Fraction(1, 10**places), 0
    for value in values():
        text = floor_decimal(value, places)
        assert float(text) <= value, (value, text)
        assert Fraction(value) - Fraction(text) < unit, (value, text)
        assert -Decimal(text).as_tuple().exponent == places
        checked += 1
    assert checked > 100_000


def test_printing_as_floor_decimal_does_passes_the_shared_check():
    check_rounding(floor_decimal)
    check_rounding(lambda value: floor_decimal(value, 6))


def test_numbers_that_have_the_decimals_are_printed_as_they_are():
    assert floor_decimal(0.29, 2) == "0.29"
    assert floor_decimal(1.5) == "1.500"
    assert floor_decimal(0.4999, 3) == "0.499"
    assert floor_decimal(0.9999999, 3) == "0.999"
    assert floor_decimal(2 / 3, 4) == "0.6666"


def test_a_float32_is_never_above_and_is_the_nearest_such():
    for value in values():
        if value < 1e30:
            stored = floor_float32(value)
            assert stored.dtype == np.float32
            assert float(stored) <= value
            assert float(np.nextafter(stored, np.float32(math.inf))) > value


def test_printing_upwards_never_falls_short():
    rng = np.random.default_rng(5)
    for value in (10 ** rng.uniform(-9, 3, 2_000)).tolist():
        for places in (2, 6):
            text = ceil_decimal(value, places)
            assert value <= float(text) < value + 1.0001 * 10.0**-places
    assert ceil_decimal(0.29, 2) == "0.29"
    assert ceil_decimal(0.4991) == "0.500"


def test_a_radius_is_printed_rounded_down_and_never_as_zero():
    rng = np.random.default_rng(6)
    for value in (10 ** rng.uniform(-9, 2, 2_000)).tolist():
        text = radius_text(value)
        assert 0 < float(text) <= value
        assert float(text) > 0.89 * value or value - float(text) < 1e-4
    assert [radius_text(value) for value in (0.0, 5e-13, float("nan"))] == [NO_RADIUS] * 3


def test_a_certificate_of_radius_zero_claims_the_class_only():
    """As of a grid that tests radius 0: the margin for rounding is no radius that anybody could use."""
    tested = Certificate(**COMMON, radius=2.5e-13, bounds=Bounds(3, separation=1e-12))
    assert "class 3 certified, class only, no radius;" in repr(tested)
    assert "within" not in repr(tested)
    assert "0.000" not in repr(tested)
    assert "class only, no radius" in tested._repr_html_()
