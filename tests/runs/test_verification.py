"""Every kind of tampering that we could think of must be seen, by who edits a file and by who repairs its sums too."""

import json
import math
import shutil
from dataclasses import asdict

import numpy as np
import pytest
import torch

from attack_fixtures import with_small_attacks
from smoothcert import runs
from smoothcert.cli import main
from smoothcert.data import ArrayData
from smoothcert.errors import InputError, ModelError
from smoothcert.models.architectures import small_cnn
from smoothcert.models.spec import ModelSpec
from smoothcert.noise import NOISES
from smoothcert.records import Votes
from smoothcert.runs.attacking import attack_base_dataset, attack_run
from smoothcert.runs.bounding import bound_dataset
from smoothcert.runs.directory import ROWS
from smoothcert.runs.exchange import import_log
from smoothcert.runs.journal import as_bytes
from smoothcert.runs.manifest import FILE, Manifest, read_manifest
from smoothcert.runs.redrawing import draw_again
from smoothcert.runs.settings import AttackSettings, BaseAttackSettings, BoundSettings
from smoothcert.runs.verification import verify_run
from smoothcert.stats.procedures import fixed_bounds
from smoothcert.stats.radii import margin_radius
from smoothcert.training.loop import seeded

RNG = np.random.default_rng(0)
DATA = ArrayData(RNG.integers(256, size=(8, 1, 8, 8), dtype=np.uint8), RNG.integers(10, size=8), None, "noise")
FACTOR = 0.6  # of the way to where no class is ahead
COMMON = {"sigma": 0.5, "seed": 0, "batch_size": 32, "n_max": 500}
SETTINGS = {
    "planned": runs.CertifySettings(**COMMON),
    "paper": runs.CertifySettings(**COMMON, procedure="paper"),
    "grid": runs.CertifySettings(**COMMON, radii=(0.0, 0.25, 0.5)),
    "grid, known labels": runs.CertifySettings(**COMMON, radii=(0.0, 0.25), known_labels=True),
    "grid, no rival": runs.CertifySettings(**COMMON, radii=(0.0, 0.25), rival=False),
    "margin": runs.CertifySettings(**COMMON, margin=0.1),
    "paper, margin": runs.CertifySettings(**COMMON, procedure="paper", margin=0.1),
    "grid, margin": runs.CertifySettings(**COMMON, radii=(0.0, 0.25), margin=0.1),
    "sequential": runs.PredictSettings(**COMMON),
    "predict": runs.PredictSettings(**COMMON, procedure="paper"),
}


def network():
    """Sure of some inputs and unsure of others, though it was never trained."""
    model = seeded(small_cnn, 0)
    with torch.no_grad():
        model[-1].bias -= FACTOR * model(torch.from_numpy(DATA.inputs).float() / 255).mean(0)
    return model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in SETTINGS.items():
        start = runs.predict_dataset if isinstance(settings, runs.PredictSettings) else runs.certify_dataset
        start(network(), DATA, folder / name, settings)
    return folder


@pytest.mark.parametrize("name", SETTINGS)
def test_an_untouched_run_of_every_procedure_passes(made, name):
    found = verify_run(made / name)
    assert found.problems == []
    assert found.recomputed == found.rows == 8
    assert any("--again" in words for words in found.unchecked)


@pytest.fixture
def copy(made, tmp_path):
    def make(name):
        return shutil.copytree(made / name, tmp_path / "run")

    return make


def rows_file(run):
    return next(run / name for name in ROWS.values() if (run / name).exists())


def edit_text(run, old, new, file=None):
    path = run / FILE if file else rows_file(run)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def claim(rows):
    """The first row that claims a class."""
    return next(row for row in rows if row["label"] is not None)


def forge(run, change_rows=None, change_manifest=None):
    """Change rows and manifest, and repair every hash and checksum: the work of somebody who knows the format."""
    rows = runs.open(run).rows
    values = dict(read_manifest(run).values)
    if change_manifest:
        values = json.loads(json.dumps(values))
        change_manifest(values)
    if change_rows:
        rows = change_rows(rows) or rows
    manifest = Manifest(values)
    (run / FILE).write_text(manifest.text)
    rows_file(run).write_bytes(as_bytes(rows, manifest.run_id))


def lines(run):
    return rows_file(run).read_bytes().splitlines(keepends=True)


def put(run, content):
    rows_file(run).write_bytes(b"".join(content))


def without_last_digit(text):
    digit = text[-1]
    return text[:-1] + str((int(digit) + 1) % 10)


def edited_radius(run):
    radius = json.dumps(claim(runs.open(run).rows)["radius"])
    edit_text(run, f'"radius":{radius}', f'"radius":{without_last_digit(radius)}')


NAIVE = {
    "a radius, by one digit": edited_radius,
    "a vote": lambda run: edit_text(run, '"n":100,', '"n":101,'),
    "a label": lambda run: edit_text(run, '"true":', '"true":1'),
    "a checksum": lambda run: put(run, [lines(run)[0].replace(b'"sum":"', b'"sum":"0'), *lines(run)[1:]]),
    "a line dropped in the middle": lambda run: put(run, [*lines(run)[:3], *lines(run)[4:]]),
    "the first line dropped": lambda run: put(run, lines(run)[1:]),
    "the last line dropped": lambda run: put(run, lines(run)[:-1]),
    "two lines swapped": lambda run: put(run, [lines(run)[1], lines(run)[0], *lines(run)[2:]]),
    "a line doubled": lambda run: put(run, [lines(run)[0], *lines(run)]),
    "a line more at the end": lambda run: put(run, [*lines(run), lines(run)[-1]]),
    "the last line torn": lambda run: put(run, [*lines(run)[:-1], lines(run)[-1][:-20]]),
    "all lines gone": lambda run: put(run, []),
    "the file of rows gone": lambda run: rows_file(run).unlink(),
    "the manifest gone": lambda run: (run / FILE).unlink(),
    "alpha in the manifest": lambda run: edit_text(run, '"alpha": 0.001', '"alpha": 0.01', file=FILE),
    "sigma in the manifest": lambda run: edit_text(run, '"sigma": 0.5', '"sigma": 0.6', file=FILE),
    "the key": lambda run: edit_text(run, '"key": "', '"key": "0', file=FILE),
    "the manifest's hash": lambda run: edit_text(run, '"hash": "', '"hash": "0', file=FILE),
}


@pytest.mark.parametrize("kind", NAIVE)
def test_an_edited_file_is_seen(copy, kind):
    run = copy("planned")
    NAIVE[kind](run)
    assert not verify_run(run).passed


def more(name, factor=1.001):
    def change(rows):
        claim(rows)[name] *= factor

    return change


def change_bounds(rows):
    claim(rows)["bounds"]["q_a_upper"] *= 0.999


def move_votes(rows):
    """From a rival to the class that is claimed, so that the sum stays."""
    row = next(r for r in rows if r.get("radius", 0) > 0 and len(r["stages"][-1]["votes"]) > 1)
    votes = row["stages"][-1]["votes"]
    rival = next(name for name in votes if int(name) != row["label"])
    votes[rival] -= 1
    votes[str(row["label"])] += 1


def add_votes(rows):
    stage = claim(rows)["stages"][-1]
    stage["votes"][str(claim(rows)["label"])] += 50


def add_votes_and_draws(rows):
    stage = claim(rows)["stages"][-1]
    stage["votes"][str(claim(rows)["label"])] += 50
    stage["n"] += 50


def other_label(rows):
    claim(rows)["label"] = (claim(rows)["label"] + 1) % 10


def claim_an_abstention(rows):
    row = next(r for r in rows if r["label"] is None)
    row.update(label=3, radius=0.4)


def drop_a_stage(rows):
    claim(rows)["stages"].pop(0)


def repeat_a_stage(rows):
    claim(rows)["stages"].append(claim(rows)["stages"][-1])


def negative_votes(rows):
    votes = claim(rows)["stages"][-1]["votes"]
    votes["9"], votes[str(claim(rows)["label"])] = -5, votes[str(claim(rows)["label"])] + 5 + votes.get("9", 0)


def votes_for_a_class_too_many(rows):
    claim(rows)["stages"][-1]["votes"]["10"] = 0


def unknown_noise(rows):
    claim(rows)["noise"] = "quiet"


def no_votes(rows):
    del claim(rows)["stages"]


def error_with_a_result(rows):
    claim(rows)["error"] = "none really"


def fewer_rows(rows):
    return rows[:-1]


def set_in_manifest(*path, value):
    def change(values):
        inner = values
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value

    return change


FORGED = {
    "a larger radius": ("planned", more("radius"), None),
    "a radius larger by the last digit": ("planned", more("radius", 1 + 2**-52), None),
    "a smaller radius": ("planned", more("radius", 0.999), None),
    "better bounds": ("planned", change_bounds, None),
    "votes moved to the claimed class": ("paper", move_votes, None),
    "votes that do not sum": ("planned", add_votes, None),
    "more votes and more draws": ("planned", add_votes_and_draws, None),
    "another class": ("planned", other_label, None),
    "a claim where it abstained": ("planned", claim_an_abstention, None),
    "a stage dropped": ("planned", drop_a_stage, None),
    "a stage more": ("planned", repeat_a_stage, None),
    "negative votes": ("planned", negative_votes, None),
    "votes for a class that is not there": ("planned", votes_for_a_class_too_many, None),
    "noise of an unknown kind": ("planned", unknown_noise, None),
    "a claim without votes": ("planned", no_votes, None),
    "an error with a result": ("planned", error_with_a_result, None),
    "a row fewer": ("planned", fewer_rows, None),
    "alpha changed afterwards": ("paper", None, set_in_manifest("alpha", value=0.01)),
    "alpha changed everywhere": (
        "paper",
        None,
        lambda values: (values.update(alpha=0.01), values["procedure"].update(alpha=0.01)),
    ),
    "sigma changed afterwards": ("paper", None, set_in_manifest("sigma", value=1.0)),
    "fewer draws planned": ("paper", None, set_in_manifest("procedure", "n", value=400)),
    "another procedure": ("paper", None, set_in_manifest("procedure", "name", value="Magic")),
    "other radii in the grid": ("grid", None, set_in_manifest("procedure", "radii", value=[0.05, 0.25, 0.5])),
    "labels not known after all": ("grid, known labels", None, set_in_manifest("known_labels", value=False)),
    "an input fewer": ("planned", None, lambda values: values["indices"].pop()),
    "an input twice": ("planned", None, lambda values: values["indices"].__setitem__(1, 0)),
    "a procedure that is retired": ("planned", None, set_in_manifest("procedure", "name", value="Wide")),
    "a retired setting": ("planned", None, set_in_manifest("procedure", "randomized", value=True)),
    "a retired setting that is no switch": ("planned", None, set_in_manifest("procedure", "randomized", value=None)),
    "a retired setting of another procedure": ("paper", None, set_in_manifest("procedure", "randomized", value=False)),
    "a margin left out": ("margin", None, set_in_manifest("procedure", "margin", value=0.0)),
    "a larger margin": ("margin", None, set_in_manifest("procedure", "margin", value=0.11)),
    "a larger margin of the paper's": ("paper, margin", None, set_in_manifest("procedure", "margin", value=0.11)),
    "a larger margin of the grid": ("grid, margin", None, set_in_manifest("procedure", "margin", value=0.6)),
    "a larger radius with a margin": ("margin", more("radius"), None),
    "a better p-value": ("predict", more("p_value", 0.5), None),
    "another answer": ("sequential", other_label, None),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forgery_with_all_sums_repaired_is_seen(copy, kind):
    name, change_rows, change_manifest = FORGED[kind]
    run = copy(name)
    forge(run)
    assert verify_run(run).passed, "the forger's tools alone leave a run that passes"
    forge(run, change_rows, change_manifest)
    assert not verify_run(run).passed


def test_there_are_more_than_thirty_kinds():
    assert len(NAIVE) + len(FORGED) > 30


def invented_votes(rows):
    """Votes and a radius that fit each other: only drawing again can tell."""
    for row in rows:
        if row.get("radius", 0) > 0:
            row.update({key: json.loads(json.dumps(value)) for key, value in claim(rows).items() if key not in _OWN})


_OWN = ("index", "true", "input")


def test_invented_votes_pass_until_they_are_drawn_again(copy):
    run, spec = copy("planned"), ModelSpec(source=network())
    assert draw_again(runs.open(run), spec, DATA, 8) == (8, [])
    forge(run, invented_votes)
    assert verify_run(run).passed
    made, problems = draw_again(runs.open(run), spec, DATA, 8)
    assert made == 8
    assert problems
    assert "drawn again" in str(problems[0])


def with_alpha(value):
    return lambda values: (values.update(alpha=value), values["procedure"].update(alpha=value))


def larger_alpha(rows):
    """Bounds, radii and classes as the recorded votes give them at α = 0.01."""
    for row in rows:
        stage = row["stages"][-1]
        votes = Votes.of([stage["votes"].get(str(one), 0) for one in range(10)])
        bounds = fixed_bounds(votes, row["bounds"]["label"], 0.01, runner_up=False)
        radius = NOISES[row["noise"]](0.5).radius(bounds)
        row.update(bounds=asdict(bounds), radius=radius, label=bounds.label if radius > 0 else None)


@pytest.mark.parametrize(
    ("name", "change_rows", "alpha"), [("paper", larger_alpha, 0.01), ("grid", None, 0.00101), ("predict", None, 0.01)]
)
def test_votes_do_not_show_that_alpha_was_chosen_before_them(copy, name, change_rows, alpha):
    """Not a strength but a limit, which docs/verification.md states: a consistent run passes at any α."""
    run = copy(name)
    before = [row.get("radius", 0) for row in runs.open(run).rows]
    forge(run, change_rows, with_alpha(alpha))
    assert verify_run(run).passed
    assert runs.open(run).manifest.values["alpha"] == alpha
    if name == "paper":
        assert sum(row["radius"] for row in runs.open(run).rows) > sum(before) > 0


@pytest.mark.parametrize("name", ["margin", "paper, margin"])
@pytest.mark.parametrize("used", [0.0, 0.05])
def test_a_radius_with_too_small_a_lead_is_seen_without_our_formula(copy, monkeypatch, name, used):
    run = copy(name)
    claimed = [line for line, row in enumerate(runs.open(run).rows, start=1) if row["radius"] > 0]
    assert claimed
    monkeypatch.setattr(
        "smoothcert.stats.procedures.margin_radius",
        lambda q, p, **_: margin_radius(q, p, sigma=1.0, margin=used),
    )

    def fitting(rows):
        for row in rows:
            bounds = row["bounds"]
            if bounds["label"] is not None:
                depth = margin_radius(bounds["q_a_upper"], bounds["p_b_upper"], sigma=1.0, margin=used)
                bounds["separation"], row["radius"] = depth, math.nextafter(0.5 * depth, 0)
                row["label"] = bounds["label"] if row["radius"] > 0 else None

    forge(run, fitting)
    problems = verify_run(run).problems
    assert {one.line for one in problems} >= set(claimed)
    assert all("is more than its bounds allow" in one.words for one in problems)


def test_drawing_again_refuses_other_data_and_another_model(copy):
    run = runs.open(copy("planned"))
    other = ArrayData(255 - DATA.inputs, DATA.labels, None, "noise")
    with pytest.raises(InputError, match="fingerprint"):
        draw_again(run, ModelSpec(source=network()), other, 1)
    with pytest.raises(ModelError, match="weights are others"):
        draw_again(run, ModelSpec(source=seeded(small_cnn, 1)), DATA, 1)


def test_an_imported_log_says_what_could_not_be_checked(tmp_path):
    log = tmp_path / "log.tsv"
    log.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t0.5\t1\t0:00:01\n1\t4\t-1\t0.0\t0\t0:00:01\n")
    import_log(log, tmp_path / "run", sigma=0.5, alpha=0.001, n=100_000)
    found = verify_run(tmp_path / "run")
    assert found.passed
    assert found.recomputed == 0
    assert any("no votes" in words for words in found.unchecked)


def test_last_digits_may_differ_only_where_scipy_does(copy):
    run = copy("planned")
    forge(run, more("radius", 1 + 1e-12))
    assert not verify_run(run).passed
    forge(run, None, set_in_manifest("versions", "scipy", value="1.0.0"))
    result = verify_run(run)
    assert result.passed
    assert any("SciPy 1.0.0" in words for words in result.unchecked)


def test_the_command_says_what_is_wrong_and_where(copy, capsys):
    run = copy("planned")
    assert main(["verify", str(run)]) == 0
    assert "8 of 8 rows made anew" in capsys.readouterr().out
    forge(run, more("radius"))
    assert main(["verify", str(run)]) == 1
    shown = capsys.readouterr()
    assert "wrong: line" in shown.out
    assert "its votes give" in shown.out
    assert "1 of 1 runs failed" in shown.err


def test_the_command_prints_json_for_machines(copy, capsys):
    run = copy("paper")
    assert main(["verify", str(run), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["passed"]
    assert content["recomputed"] == 8


# ---- attacks and bounds --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def others(made, tmp_path_factory):
    """An attack on one of the runs, an attack on its network, and bounds of that."""
    folder, spec = tmp_path_factory.mktemp("others"), ModelSpec(source=network())
    unlabelled = ArrayData(DATA.inputs, None, None, "noise")
    certified = runs.certify_dataset(network(), unlabelled, folder / "certified", SETTINGS["planned"])
    with pytest.MonkeyPatch.context() as patch:
        with_small_attacks(patch)
        settings = AttackSettings(attacks=("paper", "ddn"), factor=(1.0, 2.0), n_max=500, seed=0)
        attack_run(certified, spec, unlabelled, settings, folder / "attack")
    base = BaseAttackSettings(attacks=("deepfool", "pgd"), steps=3)
    attack_base_dataset(spec, DATA, base, folder / "attack-base")
    bound_dataset(spec, DATA, BoundSettings(method="lipschitz"), folder / "bound")
    return folder


def first_attempt(change):
    """What changes the first attempt on an input."""
    return lambda rows: change(rows[0]["attempts"][0], rows[0])


def another_class(attempt, row):
    attempt["label"] = (row["label"] + 1) % 10


def votes_for_another_class(attempt, row):
    for stage in attempt["stages"]:
        stage["votes"] = {str((row["label"] + 1) % 10): stage["n"]}


def judged_too_early(attempt, _):
    attempt["stages"] = attempt["stages"][:-1]


def norms_without_the_smallest(rows):
    row = next(r for r in rows if r["norm"])
    row["norms"][min(row["norms"], key=lambda name: row["norms"][name])] = None


def failed_yet_attacked(rows):
    rows[0] = {**{name: rows[0][name] for name in ("index", "true", "attempts")}, "error": "none really"}


def failed_yet_with_norms(rows):
    rows[0] = {**{name: rows[0][name] for name in ("index", "true", "norms", "norm")}, "error": "none really"}


OTHER_FORGERIES = {
    "an attempt's class": ("attack", first_attempt(another_class), None),
    "an attempt's votes": ("attack", first_attempt(votes_for_another_class), None),
    "an attempt judged too early": ("attack", first_attempt(judged_too_early), None),
    "an attempt without votes": ("attack", first_attempt(lambda one, _: one.pop("stages")), None),
    "an attempt's p-value": ("attack", first_attempt(lambda one, _: one.update(p_value=one["p_value"] / 2)), None),
    "an attempt's factor": ("attack", first_attempt(lambda one, _: one.update(factor=1.5)), None),
    "an attempt by another attack": ("attack", first_attempt(lambda one, _: one.update(attack="strong")), None),
    "an attempt beyond its radius": ("attack", first_attempt(lambda one, row: one.update(norm=row["radius"])), None),
    "an attempt of negative size": ("attack", first_attempt(lambda one, _: one.update(norm=-0.1)), None),
    "an attempt of no size": ("attack", first_attempt(lambda one, _: one.pop("norm")), None),
    "an attempt of strange size": ("attack", first_attempt(lambda one, _: one.update(norm="small")), None),
    "an attempt dropped": ("attack", lambda rows: rows[0]["attempts"].pop(), None),
    "an attempt more": ("attack", lambda rows: rows[0]["attempts"].append(rows[0]["attempts"][0]), None),
    "an attempt that is none": ("attack", lambda rows: rows[0]["attempts"].__setitem__(0, 7), None),
    "no attempts": ("attack", lambda rows: rows[0].pop("attempts"), None),
    "a smaller radius under attack": ("attack", lambda rows: rows[0].update(radius=rows[0]["radius"] / 2), None),
    "no radius under attack": ("attack", lambda rows: rows[0].pop("radius"), None),
    "a class under attack that is not there": ("attack", lambda rows: rows[0].update(label=10), None),
    "an input that failed and was attacked": ("attack", failed_yet_attacked, None),
    "an attack fewer": ("attack", None, lambda values: values["attacks"].pop()),
    "other factors": ("attack", None, set_in_manifest("factors", value=[1.0, 2.5])),
    "another level of the judge": (
        "attack",
        None,
        lambda values: (values.update(alpha=1e-9), values["procedure"].update(alpha=1e-9)),
    ),
    "a judge of fewer draws": ("attack", None, set_in_manifest("procedure", "n_max", value=100)),
    "a larger norm than the smallest": ("attack-base", lambda rows: rows[0].update(norm=99.0), None),
    "a smaller norm than the smallest": ("attack-base", lambda rows: rows[0].update(norm=1e-9), None),
    "the smallest norm left out": ("attack-base", norms_without_the_smallest, None),
    "norms of an attack fewer": ("attack-base", lambda rows: rows[0]["norms"].pop("pgd"), None),
    "norms of an attack more": ("attack-base", lambda rows: rows[0]["norms"].update(ddn=9.0), None),
    "a negative norm": ("attack-base", lambda rows: rows[0].update(norm=-1, norms={"deepfool": -1, "pgd": 1}), None),
    "a norm that is no number": ("attack-base", lambda rows: rows[0]["norms"].update(pgd="none"), None),
    "an input that failed and has norms": ("attack-base", failed_yet_with_norms, None),
    "a negative bound": ("bound", lambda rows: rows[0].update(radius=-0.1), None),
    "a bound that is no number": ("bound", lambda rows: rows[0].update(radius="large"), None),
    "a bound of no class": ("bound", lambda rows: rows[0].update(label=None), None),
    "a bound of a class that is not there": ("bound", lambda rows: rows[0].update(label=10), None),
    "a bound with votes": ("bound", lambda rows: rows[0].update(stages=[{"n": 1, "votes": {"0": 1}}]), None),
    "an input that failed and is bounded": ("bound", lambda rows: rows[0].update(error="none really"), None),
    "a bound fewer": ("bound", lambda rows: rows.pop(), None),
    "bounds that pass for certificates": ("bound", None, set_in_manifest("kind", value="certify")),
}


@pytest.mark.parametrize("kind", OTHER_FORGERIES)
def test_a_forged_attack_or_bound_is_seen(others, tmp_path, kind):
    name, change_rows, change_manifest = OTHER_FORGERIES[kind]
    run = shutil.copytree(others / name, tmp_path / "run")
    forge(run)
    assert verify_run(run).passed, "the forger's tools alone leave a run that passes"
    forge(run, in_place(change_rows) if change_rows else None, change_manifest)
    assert not verify_run(run).passed


def in_place(change):
    def changed(rows):
        change(rows)
        return rows

    return changed


@pytest.mark.parametrize(
    ("name", "recomputed", "said"),
    [("attack", True, "repeat the run"), ("attack-base", False, "repeat the run"), ("bound", False, "--again")],
)
def test_an_untouched_attack_or_bound_passes_and_says_what_was_not_checked(others, name, recomputed, said):
    found = verify_run(others / name)
    assert found.problems == []
    assert found.rows > 0
    assert found.recomputed == (found.rows if recomputed else 0)
    assert any(said in words for words in found.unchecked)


@pytest.mark.parametrize("name", ["attack", "attack-base", "bound"])
@pytest.mark.parametrize("kind", ["a checksum", "the first line dropped", "two lines swapped", "the last line torn"])
def test_an_edited_attack_or_bound_is_seen(others, tmp_path, name, kind):
    run = shutil.copytree(others / name, tmp_path / "run")
    NAIVE[kind](run)
    assert not verify_run(run).passed


def test_one_command_verifies_runs_of_every_kind(others, capsys):
    paths = [str(others / name) for name in ("certified", "attack", "attack-base", "bound")]
    assert main(["verify", *paths]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("nothing wrong") == 4
    assert "0 of 8 bounds computed again" in shown


# ---- which inputs --------------------------------------------------------------------------------------------------


def test_it_says_which_inputs_were_certified(made, tmp_path, capsys):
    assert verify_run(made / "planned").inputs == "all 8 inputs"
    runs.certify_dataset(network(), DATA, tmp_path / "some", SETTINGS["paper"], indices=[1, 2, 6])
    assert main(["verify", str(tmp_path / "some")]) == 0
    assert "inputs: 3 chosen inputs: not a sample of the 8" in capsys.readouterr().out
    runs.certify_dataset(network(), DATA, tmp_path / "third", SETTINGS["paper"], indices=[0, 3, 6])
    assert main(["verify", str(tmp_path / "third"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == "every 3rd of 8 inputs"


def test_inputs_that_the_data_does_not_have_are_a_problem(copy):
    path = copy("planned")
    forge(path, change_manifest=lambda values: values["data"].update(inputs=7))
    found = verify_run(path)
    assert "the manifest lists input 7, but the data has 7 inputs" in [str(one) for one in found.problems]
    assert found.inputs == "8 inputs whose indices do not fit data of 7 inputs"
