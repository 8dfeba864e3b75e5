import numpy as np
import pytest

from smoothcert.cli import main

VOTES = np.array([[9000, 600, 400]] * 6 + [[5000, 4999, 1]] * 2 + [[0, 0, 10_000]] * 2)
LABELS = np.array([0] * 6 + [1, 0] + [2, 1])


@pytest.fixture
def files(tmp_path):
    np.savez(tmp_path / "votes.npz", a=VOTES)
    np.save(tmp_path / "labels.npy", LABELS)
    return str(tmp_path / "votes.npz"), str(tmp_path / "labels.npy")


def run(capsys, *args):
    code = main(["replay", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def row(out, name):
    (line,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
    return line.split()[1:]


def test_prints_draws_and_the_table_beside_the_paper_s(files, capsys):
    votes, labels = files
    radii = ["--radii", "0", "0.25", "1"]
    code, out, _ = run(capsys, votes, "--sigma", "0.5", "--labels", labels, *radii, "--n-max", "5000")
    assert code == 0
    # seven of ten are certified and correct: six clear ones and one of the unanimous
    assert row(out, "0") == ["70.00", "70.00", "+0.00"]
    assert row(out, "0.25") == ["70.00", "70.00", "+0.00"]
    assert row(out, "1") == ["10.00", "10.00", "+0.00"]
    assert "× fewer" in out
    assert "futile" in out


def test_without_labels_it_counts_what_is_certified(files, capsys):
    _, out, _ = run(capsys, files[0], "--sigma", "0.5", "--radii", "0", "--n-max", "5000")
    assert row(out, "0") == ["80.00", "80.00", "+0.00"]


def test_inputs_whose_known_label_is_wrong_cost_next_to_nothing(files, capsys, tmp_path):
    np.save(tmp_path / "wrong.npy", [1] * 6 + [2] * 2 + [1] * 2)
    wrong = [
        files[0],
        "--sigma",
        "0.5",
        "--labels",
        str(tmp_path / "wrong.npy"),
        "--radii",
        "0",
        "0.25",
        "--n-max",
        "5000",
    ]
    draws = []
    for more in ([], ["--known-label", "--no-rival"]):
        _, out, _ = run(capsys, *wrong, *more)
        draws.append(int(out.split("inputs: ")[1].split(" draws")[0].replace(",", "")))
    assert draws[1] == 100 < draws[0]  # one look


@pytest.mark.parametrize("procedure", ["planned", "paper"])
def test_other_procedures_of_certification(files, capsys, procedure):
    code, out, _ = run(capsys, files[0], "--procedure", procedure, "--n-max", "2000", "--method", "without-replacement")
    assert code == 0
    assert row(out, "0")[0] == "80.00"


@pytest.mark.parametrize("procedure", ["predict", "sequential-predict"])
def test_predictions(files, capsys, procedure):
    code, out, _ = run(capsys, files[0], "--procedure", procedure, "--n-max", "1000", "--labels", files[1])
    assert code == 0
    assert row(out, "replayed") == ["80.00", "20.00", "70.00"]


def test_the_same_seed_prints_the_same(files, capsys):
    assert run(capsys, files[0], "--seed", "5") == run(capsys, files[0], "--seed", "5")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--known-label"], "--labels"),
        (["--alpha", "0.7"], "alpha"),
        (["--sigma", "0"], "sigma"),
        (["--radii", "0.5", "0.25"], "radii"),
        (["--every", "0"], "every"),
        (["--array", "b"], "got 'b'"),
        (["--procedure", "paper", "--method", "without-replacement"], "recorded"),
    ],
)
def test_bad_settings_end_with_one_line(files, capsys, args, message):
    code, _, err = run(capsys, files[0], *args)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_labels_must_fit_the_votes(files, capsys, tmp_path):
    np.save(tmp_path / "few.npy", LABELS[:3])
    np.save(tmp_path / "large.npy", LABELS + 5)
    for name in ("few.npy", "large.npy"):
        code, _, err = run(capsys, files[0], "--labels", str(tmp_path / name))
        assert code == 2
        assert "10 labels from 0 to 2" in err


def test_averages_beside_a_grid_are_of_its_radii_on_both_sides(files, capsys):
    """The paper's radii lie between the tested ones: their average as it is would not be the same quantity."""
    words = [files[0], "--sigma", "0.5", "--radii", "0", "0.25", "1", "--n-max", "5000"]
    (line,) = [line for line in run(capsys, *words)[1].splitlines() if "average" in line]
    # Six of ten inputs reach 0.25 and two reach 1; the two near-ties reach nothing.
    assert line.split() == ["average", "of", "tested", "radii", "0.350", "0.350"]
    (line,) = [line for line in run(capsys, *words, "--procedure", "planned")[1].splitlines() if "average" in line]
    assert line.split()[0] == "average"
    assert float(line.split()[2]) > 0.4
