"""Runs to and from other tools."""

import csv
import json
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas
import pyarrow.parquet
import pytest
import torch

from evidence import LOGS
from smoothcert import runs
from smoothcert.data.dataset import ArrayData
from smoothcert.errors import ConfigError, InputError, MissingExtraError, OutputError
from smoothcert.runs.exchange import export_run, fill, format_of, import_log, new_run, read_log, read_times
from smoothcert.runs.manifest import FORMAT, Manifest

PUBLISHED_LOGS = sorted(path for path in LOGS.rglob("*") if path.is_file())
HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
HOSTILE = [
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@sum(A1)",
    "\t=1+1",
    " =1+1",
    "\r\nidx\tlabel",
    "\x1b[31mred",
    'ValueError: a "quoted", text',
    "half a pair \udc80",
    "Käfer 甲虫",
    "＝1+1",
]


class MeanOfChannel(torch.nn.Module):
    def forward(self, x):
        return x.mean(dim=(2, 3))


def clear_images(count, seed=0):
    """Images with one bright channel each, whose number is their class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    images = rng.integers(0, 120, (count, 3, 4, 4), dtype=np.uint8)
    images[np.arange(count), labels] += 60
    return ArrayData(images, labels, None, "bright")


SETTINGS = {"sigma": 0.25, "seed": 1, "n_max": 300, "batch_size": 128, "chunk": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    out = tmp_path_factory.mktemp("certified") / "run"
    return runs.certify_dataset(MeanOfChannel(), clear_images(12), out, runs.CertifySettings(**SETTINGS))


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    out = tmp_path_factory.mktemp("predicted") / "run"
    return runs.predict_dataset(MeanOfChannel(), clear_images(6), out, runs.PredictSettings(**SETTINGS))


def write_run(out, rows, times=None, *, indices=None):
    """A run with these rows, as if it had been made here."""
    values = {
        "format": FORMAT,
        "kind": "certify",
        "sigma": 0.5,
        "alpha": 0.001,
        "procedure": {"name": "planned"},
        "model": {"num_classes": 3},
        "data": {"name": "made up"},
        "indices": [row["index"] for row in rows] if indices is None else indices,
        "key": "00",
    }
    with new_run(out) as writer:
        fill(writer, Manifest(values), rows, times or {})
    return runs.open(out)


def random_rows(seed, count=200):
    """Abstentions, failures, unlabelled inputs, and radii of all sizes."""
    rng = np.random.default_rng(seed)
    for index in rng.permutation(10 * count)[:count].tolist():
        truth = None if rng.random() < 0.1 else int(rng.integers(0, 3))
        kind = rng.random()
        if kind < 0.1:
            yield {"index": index, "true": truth, "error": "ValueError: broken"}
        elif kind < 0.3:
            yield {"index": index, "true": truth, "label": None, "radius": 0.0}
        else:
            radius = float(10 ** rng.uniform(-8, 1)) if rng.random() < 0.8 else round(float(rng.uniform(0, 2)), 3)
            yield {"index": index, "true": truth, "label": int(rng.integers(0, 3)), "radius": radius}


def cells_of(path):
    return [line.split("\t") for line in path.read_text().splitlines()]


# The paper's log


def test_a_certified_run_is_written_as_the_paper_s_log(certified, tmp_path):
    assert export_run(certified, tmp_path / "log.tsv", "tsv") == ()
    header, *lines = cells_of(tmp_path / "log.tsv")
    assert "\t".join(header) + "\n" == HEADER
    times = read_times(certified)
    assert len(lines) == len(certified.rows) == len(times)
    for (idx, label, predict, radius, correct, time), row in zip(lines, certified.rows, strict=True):
        assert (int(idx), int(label)) == (row["index"], row["true"])
        assert int(predict) == (-1 if row["label"] is None else row["label"])
        assert float(radius) == row["radius"]
        assert correct == str(int(row["label"] == row["true"]))
        assert time == str(timedelta(seconds=times[row["index"]]))
    assert any(float(line[3]) > 0 for line in lines)


def test_a_predicting_run_has_no_radius(predicted, tmp_path):
    export_run(predicted, tmp_path / "log.tsv", "tsv")
    header, *lines = cells_of(tmp_path / "log.tsv")
    assert header == ["idx", "label", "predict", "correct", "time"]
    assert [int(line[2]) for line in lines] == [-1 if row["label"] is None else row["label"] for row in predicted.rows]


def test_what_cannot_be_said_becomes_an_abstention_and_a_notice(tmp_path):
    rows = [
        {"index": 3, "true": 1, "error": "boom"},
        {"index": 1, "true": None, "label": 2, "radius": 0.5},
        {"index": 2, "true": None, "label": None, "radius": 0.0},
        {"index": 0, "true": 2, "label": 2, "radius": 1.0},
    ]
    run = write_run(tmp_path / "run", rows, {1: 90061.5, 0: 2.0})
    notices = export_run(run, tmp_path / "log.tsv", "tsv")
    assert cells_of(tmp_path / "log.tsv")[1:] == [
        ["3", "1", "-1", "0.0", "0", "0:00:00"],
        ["1", "-1", "2", "0.5", "0", "1 day, 1:01:01.500000"],
        ["2", "-1", "-1", "0.0", "0", "0:00:00"],
        ["0", "2", "2", "1.0", "1", "0:00:02"],
    ]
    assert notices == ("1 of 4 inputs failed; the log has them as abstentions",)


def test_an_unfinished_run_is_exported_with_a_notice(tmp_path):
    rows = [{"index": 0, "true": 2, "label": 2, "radius": 1.0}]
    run = write_run(tmp_path / "run", rows, indices=[0, 1, 2])
    for name in ("tsv", "csv", "parquet"):
        assert export_run(run, tmp_path / f"log.{name}", name) == (
            "the run is not complete: 1 of 3 inputs were exported",
        )


@pytest.mark.parametrize("seed", range(5))
def test_written_radii_are_the_stored_ones_to_the_last_digit(tmp_path, seed):
    run = write_run(tmp_path / "run", list(random_rows(seed)))
    stored = np.array(run.table()["radius"])
    export_run(run, tmp_path / "log.tsv", "tsv")
    export_run(run, tmp_path / "log.csv", "csv")
    export_run(run, tmp_path / "log.parquet", "parquet")
    with (tmp_path / "log.csv").open(newline="", encoding="utf-8") as file:
        from_csv = [float(row["radius"]) for row in csv.DictReader(file)]
    for written in ([float(line[3]) for line in cells_of(tmp_path / "log.tsv")[1:]], from_csv):
        assert written == stored.tolist()
    assert pyarrow.parquet.read_table(tmp_path / "log.parquet")["radius"].to_pylist() == stored.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_a_log_read_back_says_the_same(tmp_path, seed):
    rng = np.random.default_rng(seed)
    rows = list(random_rows(seed))
    times = {row["index"]: round(float(10 ** rng.uniform(-6, 6)), 6) for row in rows if rng.random() < 0.9}
    run = write_run(tmp_path / "run", rows, times)
    export_run(run, tmp_path / "log.tsv", "tsv")
    back = import_log(tmp_path / "log.tsv", tmp_path / "back", sigma=0.5, alpha=0.001)
    export_run(back, tmp_path / "again.tsv", "tsv")
    assert (tmp_path / "again.tsv").read_bytes() == (tmp_path / "log.tsv").read_bytes()
    old, new = run.table(), runs.open(tmp_path / "back").table()
    for name in ("index", "true", "label", "correct"):
        assert new[name] == old[name]
    assert read_times(back) == {**dict.fromkeys(old["index"], 0.0), **times}


# CSV


def test_csv_has_the_run_s_table(certified, tmp_path):
    assert export_run(certified, tmp_path / "run.csv", "csv") == ()
    frame, table = pandas.read_csv(tmp_path / "run.csv"), certified.table()
    assert list(frame.columns) == [*table, "seconds"]
    for name in ("index", "true", "draws"):
        assert frame[name].tolist() == table[name]
    assert [None if np.isnan(one) else int(one) for one in frame["label"]] == table["label"]
    assert frame["correct"].astype(bool).tolist() == table["correct"]
    assert frame["seconds"].tolist() == list(read_times(certified).values())


def test_hostile_text_stays_text_on_one_line(tmp_path):
    rows = [{"index": i, "true": None, "error": text} for i, text in enumerate(HOSTILE)]
    export_run(write_run(tmp_path / "run", rows), tmp_path / "run.csv", "csv")
    content = (tmp_path / "run.csv").read_bytes().decode("utf-8")
    assert all(one == "\n" or one.isprintable() for one in content)
    header, *lines = csv.reader(content.splitlines())
    written = [line[header.index("error")] for line in lines]
    assert len(written) == len(HOSTILE)
    assert all(one.strip()[0] not in "=+-@＝" for one in written)
    assert written[0] == "'=cmd|' /C calc'!A0"
    assert written[4] == "'\\t=1+1"
    assert written[7] == "'\\x1b[31mred"
    assert written[8] == 'ValueError: a "quoted", text'
    assert written[9] == "half a pair \\udc80"
    assert written[10] == "Käfer 甲虫"
    assert content.splitlines()[1].startswith('"0","","","0.0","0","","')


# Parquet


def test_parquet_is_read_by_pyarrow_and_pandas(certified, tmp_path):
    path = tmp_path / "run.parquet"
    assert export_run(certified, path, "parquet") == ()
    table = pyarrow.parquet.read_table(path)
    expected = {**certified.table(), "seconds": list(read_times(certified).values())}
    assert table.to_pydict() == expected
    about = json.loads(table.schema.metadata[b"smoothcert"])
    assert (about["sigma"], about["run"]) == (0.25, certified.manifest.run_id)
    frame = pandas.read_parquet(path)
    assert frame["radius"].tolist() == expected["radius"]
    assert frame["correct"].dtype == bool


def test_parquet_keeps_hostile_text_as_it_is(tmp_path):
    rows = [{"index": i, "true": None, "error": text} for i, text in enumerate(HOSTILE)]
    export_run(write_run(tmp_path / "run", rows), tmp_path / "run.parquet", "parquet")
    found = pyarrow.parquet.read_table(tmp_path / "run.parquet")["error"].to_pylist()
    assert found == [text.replace("\udc80", "\\udc80") for text in HOSTILE]


def test_parquet_needs_pyarrow(certified, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"smoothcert\[parquet\]"):
        export_run(certified, tmp_path / "run.parquet", "parquet")
    assert not list(tmp_path.iterdir())


# Where exports go


def test_the_format_follows_the_name():
    assert [format_of(Path(name)) for name in ("a.tsv", "a.CSV", "b.c.parquet")] == ["tsv", "csv", "parquet"]
    with pytest.raises(ConfigError, match=r"ends in \.tsv, \.csv, \.parquet, got 'sigma_0\.25'"):
        format_of(Path("sigma_0.25"))


def test_a_format_must_be_known(certified, tmp_path):
    with pytest.raises(ConfigError, match="Expected `format` to be one of tsv, csv, parquet, got 'xml'"):
        export_run(certified, tmp_path / "run.xml", "xml")


@pytest.mark.parametrize("name", ["tsv", "csv", "parquet"])
def test_an_existing_file_is_never_overwritten(certified, tmp_path, name):
    (tmp_path / "run").write_text("precious")
    with pytest.raises(ConfigError, match=r"There is a file .* already"):
        export_run(certified, tmp_path / "run", name)
    assert (tmp_path / "run").read_text() == "precious"


def test_paths_that_cannot_be_written_are_refused(certified, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing" / "file")
    for path in (tmp_path, tmp_path / "missing" / "run.tsv", tmp_path / "loop", tmp_path / "nowhere"):
        with pytest.raises(OutputError):
            export_run(certified, path, "tsv")
    if Path("/dev/full").exists():
        with pytest.raises(OutputError):
            export_run(certified, Path("/dev/full"), "tsv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "nowhere"]


def test_a_failed_export_leaves_nothing(certified, tmp_path, monkeypatch):
    monkeypatch.setattr("smoothcert.runs.exchange.timedelta", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_run(certified, tmp_path / "run.tsv", "tsv")
    assert not list(tmp_path.iterdir())


# Times


def test_the_last_time_holds_and_damage_is_passed_over(tmp_path):
    run = write_run(tmp_path / "run", [{"index": 0, "true": None, "label": 1, "radius": 0.1}])
    lines = [
        '{"index": 0, "seconds": 1.5}',
        '{"index": 0, "seconds": 2.5}',
        '{"index": 0, "seconds": -1}',
        '{"index": 0, "seconds": NaN}',
        '{"index": 0, "seconds": 1e300}',
        '{"index": 0, "seconds": null}',
        "[]",
        "\udc80",
        '{"index": 0, "sec',
    ]
    (run.path / "times.jsonl").write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    assert read_times(run) == {0: 2.5}
    (run.path / "times.jsonl").unlink()
    assert read_times(run) == {}


# Import


def imported(tmp_path, text, **settings):
    path = tmp_path / "log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return import_log(path, tmp_path / "run", **{"sigma": 0.5, "alpha": 0.001, **settings})


GOOD = (
    HEADER
    + "7\t3\t3\t0.378\t1\t15.4\n"
    + "5\t7\t-1\t0.0\t0\t0:02:31.238689\n"
    + "6\t7\t2\t7.11e-05\t0\t1 day, 2:03:04\n"
    + "9\t-1\t2\t1\t0\t2 days, 0:00:00.5\n"
)


def test_a_log_becomes_a_run(tmp_path):
    run = imported(tmp_path, GOOD, n=100_000, data="cifar10")
    opened = runs.open(tmp_path / "run")
    assert opened.rows == run.rows
    assert opened.complete
    assert opened.manifest.kind == "import"
    assert opened.manifest.values["procedure"] == {"name": "imported", "n": 100_000}
    assert opened.manifest.values["log"]["source"] == "log"
    assert opened.manifest.values["data"] == {"name": "cifar10"}
    table = opened.table()
    assert table["index"] == [7, 5, 6, 9]
    assert table["true"] == [3, 7, 7, None]
    assert table["label"] == [3, None, 2, 2]
    assert table["radius"] == [0.378, 0.0, 7.11e-05, 1.0]
    assert table["correct"] == [True, False, False, False]
    assert table["draws"] == [None] * 4
    assert opened.certificates == [None] * 4
    assert opened.errors == []
    assert opened.to_pandas()["index"].tolist() == [7, 5, 6, 9]
    assert read_times(opened) == {7: 15.4, 5: 151.238689, 6: 86_400 + 7384, 9: 172_800.5}


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        GOOD + "\n\n",
        GOOD.rstrip("\n"),
    ],
    ids=["CRLF", "BOM", "blank lines at the end", "no end of the last line"],
)
def test_harmless_differences_are_no_matter(tmp_path, text):
    (tmp_path / "good").write_text(GOOD)
    assert imported(tmp_path, text).rows == read_log(tmp_path / "good").rows


def test_a_log_of_predict_has_no_radius(tmp_path):
    text = "idx\tlabel\tpredict\tcorrect\ttime\n0\t1\t1\t1\t0:00:01\n2\t1\t-1\t0\t0:00:01.250000\n"
    run = imported(tmp_path, text, n=100)
    assert run.rows == [{"index": 0, "true": 1, "label": 1}, {"index": 2, "true": 1, "label": None}]
    export_run(runs.open(run.path), tmp_path / "again.tsv", "tsv")
    assert (tmp_path / "again.tsv").read_text() == text


BAD = {
    "": "got an empty file",
    "\n": "got an empty file",
    HEADER: "a header without rows",
    "idx label predict radius correct time\n": "header .* in line 1 of",
    "0\t3\t3\t0.378\t1\t15.4\n": "header .* in line 1 of",
    GOOD + "\n1\t1\t1\t1\t1\t1\n": "line 6 .* 6 columns, got 1",
    GOOD + "1\t1\t1\t0.5\t1\n": "line 6 .* 6 columns, got 5",
    GOOD + "1\t1\t1\t0.5\t1\t1\t1\n": "line 6 .* 6 columns, got 7",
    GOOD + "1\t1\t1\tnan\t1\t1\n": "line 6 .*`radius` to be a finite number >= 0, got 'nan'",
    GOOD + "1\t1\t1\tinf\t1\t1\n": "line 6 .*`radius`",
    GOOD + "1\t1\t1\t1e999\t1\t1\n": "line 6 .*`radius`",
    GOOD + "1\t1\t1\t-0.5\t1\t1\n": "line 6 .*`radius`",
    GOOD + "1\t1\t1\t1_0\t1\t1\n": "line 6 .*`radius`",
    GOOD + "1\t1\t1\t\t1\t1\n": "line 6 .*`radius`",
    GOOD + "1\t1\t1\t0\x00\t1\t1\n": "line 6 .*`radius`",
    GOOD + "5\t1\t1\t0.5\t1\t1\n": "line 6 .* got 5 again, as in line 3",
    GOOD + "1\t1\t1\t0.5\t0\t1\n": "line 6 .*`correct` 1 with label 1 and predict 1, got '0'",
    GOOD + "1\t1\t2\t0.5\t1\t1\n": "line 6 .*`correct` 0",
    GOOD + "1\t-1\t-1\t0.0\t1\t1\n": "line 6 .*`correct` 0",
    GOOD + "1\t1\t1\t0.5\ttrue\t1\n": "line 6 .*`correct` 1",
    GOOD + "1\t1\t-1\t0.5\t0\t1\n": "line 6 .*`radius` 0.0 with predict -1, which abstains, got '0.5'",
    GOOD + "-1\t1\t1\t0.5\t1\t1\n": "line 6 .*`idx` to be a whole number >= 0, got '-1'",
    GOOD + "1.0\t1\t1\t0.5\t1\t1\n": "line 6 .*`idx`",
    GOOD + "9999999999999999999\t1\t1\t0.5\t1\t1\n": "line 6 .*`idx`",
    GOOD + "٣\t1\t1\t0.5\t1\t1\n": "line 6 .*`idx`",
    GOOD + "=cmd()\t1\t1\t0.5\t1\t1\n": "line 6 .*`idx`",
    GOOD + "1\t-2\t1\t0.5\t0\t1\n": "line 6 .*`label`",
    GOOD + "1\t1\t-2\t0.5\t0\t1\n": "line 6 .*`predict`",
    GOOD + "1\t1\t1\t0.5\t1\t0:2\n": "line 6 .*`time` in seconds or as H:MM:SS.ffffff, got '0:2'",
    GOOD + "1\t1\t1\t0.5\t1\tnan\n": "line 6 .*`time`",
    GOOD + "1\t1\t1\t0.5\t1\t1e300\n": "line 6 .*`time`",
    GOOD + "1\t1\t1\t0.5\t1\t-1\n": "line 6 .*`time`",
    GOOD.encode() + b"\xff\n": "line 6 .*no UTF-8",
}


@pytest.mark.parametrize(("text", "message"), BAD.items(), ids=[f"{i}: {m}" for i, m in enumerate(BAD.values())])
def test_a_bad_log_is_refused_naming_the_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        imported(tmp_path, text)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_log_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputError, match="Cannot read the log"):
            import_log(path, tmp_path / "run", sigma=0.5, alpha=0.001)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "wrong", [{"sigma": 0}, {"sigma": float("nan")}, {"alpha": 0.7}, {"n": 0}, {"n": 1.5}], ids=str
)
def test_settings_out_of_range(tmp_path, wrong):
    with pytest.raises(ConfigError, match=f"Expected `{next(iter(wrong))}`"):
        imported(tmp_path, GOOD, **wrong)


def test_a_radius_that_the_draws_cannot_reach_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"line 5 of .* has the radius 1, .* 100 draws certify at most 0\.7502"):
        imported(tmp_path, GOOD, n=100)
    assert not (tmp_path / "run").exists()
    assert imported(tmp_path, GOOD, n=1000).rows


def test_an_existing_run_is_never_overwritten(tmp_path):
    imported(tmp_path, GOOD)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.name != "lock"}
    with pytest.raises(ConfigError, match=r"There is a run in .* already, .* Choose another --out"):
        imported(tmp_path, GOOD)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.name != "lock"} == before


def test_folders_that_cannot_take_a_run(tmp_path):
    (tmp_path / "log").write_text(GOOD)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"holds 'thesis\.tex'"):
        import_log(tmp_path / "log", tmp_path / "full", sigma=0.5, alpha=0.001)
    for out in (tmp_path / "log", tmp_path / "missing" / "run"):
        with pytest.raises(OutputError):
            import_log(tmp_path / "log", out, sigma=0.5, alpha=0.001)


def test_a_run_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    def fail(*_):
        raise OutputError("Cannot write: no space")

    monkeypatch.setattr(Manifest, "write", fail)
    with pytest.raises(OutputError, match="no space"):
        imported(tmp_path, GOOD)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


# The paper's own logs


@pytest.mark.skipif(not PUBLISHED_LOGS, reason="the published logs are not there")
@pytest.mark.parametrize("path", PUBLISHED_LOGS, ids=lambda path: "/".join(path.relative_to(LOGS).parts))
def test_published_logs_come_through_unchanged(path, tmp_path):
    certify = path.name.startswith("sigma_")
    sigma = float(path.name.removeprefix("sigma_")) if certify else 0.25
    n = 100_000 if certify else int(path.name.removeprefix("N_"))
    alpha = 0.001 if sigma == 0.12 else 0.01
    import_log(path, tmp_path / "run", sigma=sigma, alpha=alpha, n=n)
    run = runs.open(tmp_path / "run")
    export_run(run, tmp_path / "log.tsv", "tsv")
    (old_header, *old), (new_header, *new) = cells_of(path), cells_of(tmp_path / "log.tsv")
    assert new_header == old_header
    assert [[float(cell) for cell in line[:-1]] for line in new] == [
        [float(cell) for cell in line[:-1]] for line in old
    ]
    assert read_log(tmp_path / "log.tsv").times == read_log(path).times
    if all(":" in line[-1] for line in old) and "e-" not in path.read_text():
        assert (tmp_path / "log.tsv").read_bytes() == path.read_bytes()


@pytest.mark.skipif(not PUBLISHED_LOGS, reason="the published logs are not there")
def test_published_radii_give_the_alpha_away(tmp_path):
    path = LOGS / "certify" / "cifar10" / "resnet110" / "noise_0.25" / "test" / "sigma_0.25"
    with pytest.raises(ConfigError, match="Give the `sigma`, `alpha` and `n` that the log was made with"):
        import_log(path, tmp_path / "run", sigma=0.25, alpha=0.001, n=100_000)
