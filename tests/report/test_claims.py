from __future__ import annotations

import io
import re
import zlib

import numpy as np
import pytest

from page_fixtures import PROCEDURES, SIGMA, Reader, made_run, manifest, saved, written
from smoothcert import runs
from smoothcert.data import ArrayData, load
from smoothcert.records import radius_text
from smoothcert.report.page import write_report
from smoothcert.report.page.curve import curve, curve_data
from smoothcert.report.page.gallery import chosen
from smoothcert.report.page.pictures import png
from smoothcert.report.page.runs import percent, shown_runs
from smoothcert.report.page.scale import axis, headline_radius, slider_step, table_radii
from smoothcert.runs.directory import Run
from smoothcert.runs.manifest import Manifest


@pytest.fixture
def out(tmp_path):
    return tmp_path / "report.html"


# ---- nothing is claimed that the votes do not give -----------------------------------------------------------------


@pytest.mark.parametrize("name", PROCEDURES)
def test_what_is_recorded_is_what_the_votes_give(name):
    run = made_run(name)
    [shown] = shown_runs([run])
    assert shown.disputed == []
    assert [(c.label, c.radius) for c in shown.claims] == [(r["label"], r.get("radius", 0.0)) for r in run.rows]


@pytest.mark.parametrize(
    "forgery",
    [
        lambda _: {"radius": 9.0},
        lambda _: {"label": 3},
        lambda row: {"stages": row["stages"][:1]},
        lambda _: {"stages": []},
        lambda row: {"stages": [*row["stages"], {"n": 100, "votes": {"0": 100}}]},
        lambda row: {"stages": [row["stages"][0], {"n": 999, "votes": {str(row["label"]): 999}}]},
    ],
    ids=["radius", "label", "a stage less", "no votes", "a stage more", "other votes"],
)
def test_a_claim_that_the_votes_do_not_give_is_not_shown(out, forgery):
    run = made_run("paper", 12)
    rows = [{**run.rows[0], **forgery(run.rows[0])}, *run.rows[1:]]
    page = written([Run(run.path, run.manifest, rows)], out)
    assert "for 1 of 12 inputs, such as 0, the votes do not give what is recorded" in page.text
    assert max(page.data["runs"][0]["radius"]) < 9
    assert page.data["runs"][0]["radius"][0] <= run.rows[0]["radius"]


def test_rows_without_votes_claim_nothing_unless_the_run_is_a_log(out):
    run = made_run("paper", 12)
    page = written([Run(run.path, run.manifest, without_votes(run.rows))], out)
    assert "for 12 of 12 inputs" in page.text
    assert set(page.data["runs"][0]["label"]) == {-1}


def test_an_input_that_failed_claims_nothing_whatever_its_row_says(out):
    run = made_run("paper", 12)
    rows = [{"index": 0, "true": 0, "label": 0, "radius": 3.0, "error": "E"}, *run.rows[1:]]
    [columns] = written([Run(run.path, run.manifest, rows)], out).data["runs"]
    assert (columns["label"][0], columns["radius"][0]) == (-1, 0)


def test_claims_hold_at_the_alpha_that_the_page_states(out):
    run = made_run("paper", 12)
    stricter = Manifest({**run.manifest.values, "alpha": 1e-6})
    [shown] = shown_runs([Run(run.path, stricter, run.rows)])
    assert all(
        claim.radius < row["radius"] or claim.radius == 0 for claim, row in zip(shown.claims, run.rows, strict=True)
    )
    assert len(shown.disputed) >= sum(row["radius"] > 0 for row in run.rows)


def test_shares_and_radii_are_never_rounded_up():
    assert percent(2 / 3) == "66.6\N{NO-BREAK SPACE}%"
    assert percent(0.9999) == "99.9\N{NO-BREAK SPACE}%"
    assert radius_text(0.99999) == "0.9999"
    assert radius_text(0.0000319) == "0.000031"
    assert radius_text(1e-10) == "class only, no radius"


def test_the_curve_never_lies_above_the_numbers():
    run = made_run("paper", 300)
    [shown] = shown_runs([run])
    end, _ = axis([shown])
    for x, y in corners(curve_path(shown)):
        radius, share = x * end / 2000, 1 - y / 1000
        assert share <= shown.accuracy(radius) + 1e-12


def curve_path(shown) -> str:
    return re.search(r'<path d="([^"]+)" class="curve', curve([shown]))[1]


def corners(path: str):
    """The ends of all level pieces: there the curve is as far out as it goes."""
    x = y = 0
    for kind, numbers in re.findall(r"([MHV])([0-9 ]+)", path):
        if kind == "M":
            x, y = map(int, numbers.split())
        elif kind == "H":
            x = int(numbers)
            yield x, y
        else:
            y = int(numbers)


def test_axes_end_at_round_numbers_beyond_the_largest_radius():
    for largest in (0.03, 0.26, 0.999, 1.0, 1.75, 3.9, 12.0):
        run = made_run("paper", 4, sigma=min(largest, SIGMA))
        rows = [{**row, "label": row["true"], "radius": largest} for row in run.rows]
        [shown] = shown_runs(
            [Run(run.path, Manifest({**run.manifest.values, "kind": "import"} | LOG), without_votes(rows))]
        )
        end, marks = axis([shown])
        assert largest <= end <= 1.5 * largest
        assert 3 <= len(marks) <= 7
        assert 100 <= round(end / slider_step(end)) <= 1000


def test_tables_have_the_runs_own_radii_or_round_ones():
    grid, paper = made_run("grid"), made_run("paper")
    other = made_run("paper", sigma=0.12)
    assert table_radii(shown_runs([grid])) == [0.0, 0.25, 0.5]
    assert table_radii(shown_runs([paper, grid])) == [0.0, 0.25, 0.5]
    assert table_radii(shown_runs([paper, other])) == axis(shown_runs([paper, other]))[1]
    assert headline_radius(shown_runs([grid])) == 0.5
    assert 0 < headline_radius(shown_runs([paper, other])) <= 0.25


LOG = {"log": {"kind": "certify", "source": "log.tsv", "sha256": "ab"}}


def without_votes(rows: list[dict]) -> list[dict]:
    return [{name: row[name] for name in ("index", "true", "label", "radius")} for row in rows]


def test_what_the_script_gets_is_what_the_run_has(tmp_path):
    run = runs.open(saved(made_run("planned", 30), tmp_path / "r"))
    table = run.table()
    [columns] = curve_data(shown_runs([run]), 0.25)["runs"]
    assert columns["index"] == table["index"]
    assert columns["radius"] == table["radius"]
    assert columns["true"] == table["true"]
    assert columns["label"] == [-1 if label is None else label for label in table["label"]]


def test_ten_thousand_inputs_stay_below_ten_megabytes(out):
    few = made_run("paper", 500)
    rows = [{**few.rows[index % 500], "index": index} for index in range(10_000)]
    run = Run(few.path, manifest(PROCEDURES["paper"], 10_000), rows)
    distinct = [{**row, "radius": row["radius"] * (1 - row["index"] / 1e5)} for row in without_votes(rows)]
    log = Run(few.path / "log", Manifest({**run.manifest.values, "kind": "import"} | LOG), distinct)
    page = written([run, log], out)
    assert out.stat().st_size < 2_500_000
    assert [len(one["radius"]) for one in page.data["runs"]] == [10_000, 10_000]
    paths = [attributes["d"] for tag, attributes in page.tags if "curve style" in attributes.get("class", "")]
    assert max(map(len, paths)) < 50_000


# ---- pictures ------------------------------------------------------------------------------------------------------


def digits_run(count: int = 12) -> Run:
    data = load("digits")
    described = {"name": data.name, "inputs": len(data), "fingerprint": data.fingerprint(), "classes": None}
    return made_run("paper", count, data=described)


def pictures_of(page: Reader) -> list[str]:
    return [attributes["src"] for tag, attributes in page.tags if tag == "img"]


def test_inputs_are_shown_with_two_noisy_copies_each(out):
    page = written([digits_run()], out, gallery=6)
    figures = [attributes["id"] for tag, attributes in page.tags if tag == "figure"]
    assert len(figures) == len(set(figures)) <= 6
    assert len(pictures_of(page)) == 3 * len(figures)
    assert len(set(pictures_of(page))) == 3 * len(figures)
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")
    assert "cut off at black and white for display only" in page.text


@pytest.mark.parametrize("options", [{"images": False}, {"gallery": 0}])
def test_pictures_can_be_left_out(out, options):
    page = written([digits_run()], out, **options)
    assert pictures_of(page) == []
    assert ("Least robust" in page.text) == ("gallery" not in options)


def test_other_data_than_the_runs_are_not_shown(out):
    run = digits_run()
    changed = Manifest({**run.manifest.values, "data": {**run.manifest.values["data"], "fingerprint": "sha256:no"}})
    notices = write_report([Run(run.path, changed, run.rows)], out)
    assert any("fingerprints differ" in notice for notice in notices)
    page = Reader(out.read_text("utf-8"))
    assert "Without pictures: the data digits (test) here are not those of the run" in page.text
    assert pictures_of(page) == []


def test_data_known_by_a_name_only_must_be_given(out):
    generator = np.random.default_rng(0)
    data = ArrayData(generator.integers(0, 256, (12, 3, 200, 300), np.uint8), None, None, "photos.npz")
    described = {"name": data.name, "inputs": 12, "fingerprint": data.fingerprint(), "classes": None}
    run = made_run("paper", 12, data=described)
    assert "give it with --data" in written([run], out).text
    assert len(pictures_of(written([run], out, data=data))) > 0
    assert out.stat().st_size < 10_000_000


def test_inputs_that_are_no_images_have_votes_only(out):
    data = ArrayData(np.zeros((12, 5), np.float32), None, None, "vectors.npz")
    described = {"name": data.name, "inputs": 12, "fingerprint": data.fingerprint(), "classes": None}
    page = written([made_run("paper", 12, data=described)], out, data=data)
    assert pictures_of(page) == []
    assert "1,100 votes" in page.text


def test_the_gallery_has_the_worst_the_least_and_the_most_robust():
    run = made_run("paper", 200)
    [shown] = shown_runs([run])
    bad, least, most = chosen(shown, 12).values()
    assert [len(bad), len(least), len(most)] == [4, 4, 4]
    radii, counted = shown.radii, shown.counted
    assert not counted[bad].any()
    assert [shown.outcome(place) for place in bad] == ["wrong"] * 4
    assert radii[least].max() <= np.sort(radii[counted])[3]
    assert radii[most].min() >= np.sort(radii[counted])[-4]


def test_a_png_is_what_the_standard_says():
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    content = png(image)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    start = content.index(b"IDAT")
    length = int.from_bytes(content[start - 4 : start], "big")
    rows = zlib.decompress(content[start + 4 : start + 4 + length])
    assert rows == b"\0" + image[0].tobytes() + b"\0" + image[1].tobytes()


def test_a_png_is_read_by_others():
    pillow = pytest.importorskip("PIL.Image")
    for channels in (1, 3):
        image = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
        read = np.asarray(pillow.open(io.BytesIO(png(image))))
        assert (read.reshape(image.shape) == image).all()
