"""Shards joined into the run that they are parts of."""

import json

import numpy as np
import pytest
import torch

from smoothcert import runs
from smoothcert.data.dataset import ArrayData
from smoothcert.errors import ConfigError, OutputError, ResumeError
from smoothcert.runs.exchange import import_log, read_times
from smoothcert.runs.manifest import Manifest
from smoothcert.runs.merging import merge_runs

COUNT = 10
SETTINGS = {"sigma": 0.25, "seed": 1, "n_max": 300, "batch_size": 128, "chunk": 1, "device": "cpu"}
ROWS = {"certify": "certificates.jsonl", "predict": "predictions.jsonl"}


class MeanOfChannel(torch.nn.Module):
    def forward(self, x):
        return x.mean(dim=(2, 3))


class Grey(ArrayData):
    """Images of which one cannot be read."""

    def __getitem__(self, index):
        if index == 4:
            raise OSError("damaged")
        return super().__getitem__(index)


def images(kind=ArrayData):
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 200, (COUNT, 3, 4, 4), dtype=np.uint8)
    return kind(inputs, rng.integers(0, 3, COUNT), None, "noise")


def make(out, indices=None, *, kind="certify", data=None, **settings):
    data = images() if data is None else data
    if kind == "certify":
        made = runs.CertifySettings(**{**SETTINGS, **settings})
        return runs.certify_dataset(MeanOfChannel(), data, out, made, indices=indices)
    made = runs.PredictSettings(**{**SETTINGS, **settings})
    return runs.predict_dataset(MeanOfChannel(), data, out, made, indices=indices)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two halves of a run, neither in ascending order."""
    folder = tmp_path_factory.mktemp("shards")
    make(folder / "odd", [9, 1, 3, 5, 7])
    make(folder / "even", [0, 8, 2, 6, 4])
    return folder / "odd", folder / "even"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


@pytest.mark.parametrize("kind", ["certify", "predict"])
def test_the_file_is_that_of_a_single_run(tmp_path, kind):
    make(tmp_path / "odd", range(1, COUNT, 2), kind=kind)
    make(tmp_path / "even", range(0, COUNT, 2), kind=kind)
    single = make(tmp_path / "single", kind=kind)
    merged = merge_runs([tmp_path / "odd", tmp_path / "even"], tmp_path / "merged")
    name = ROWS[kind]
    assert (tmp_path / "merged" / name).read_bytes() == (tmp_path / "single" / name).read_bytes()
    assert merged.manifest.run_id == single.manifest.run_id
    assert runs.open(tmp_path / "merged").certificates == single.certificates
    # ... and goes on as such: there is nothing left to do
    settings = (runs.CertifySettings if kind == "certify" else runs.PredictSettings)(**SETTINGS)
    again = getattr(runs, f"{kind}_dataset")(MeanOfChannel(), images(), tmp_path / "merged", settings, resume=True)
    assert again.rows == single.rows


def test_rows_and_times_stand_in_ascending_order(shards, tmp_path):
    merged = merge_runs(shards, tmp_path / "merged")
    opened = runs.open(tmp_path / "merged")
    assert opened.rows == merged.rows
    assert opened.complete
    assert opened.manifest.indices == opened.table()["index"] == list(range(COUNT))
    assert read_times(opened) == {**read_times(runs.open(shards[0])), **read_times(runs.open(shards[1]))}
    lines = (tmp_path / "merged" / "times.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == list(range(COUNT))


def test_the_order_of_the_parts_is_no_matter(shards, tmp_path):
    merge_runs(shards, tmp_path / "one")
    merge_runs(shards[::-1], tmp_path / "other")
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_the_parts_are_left_alone(shards, tmp_path):
    before = [contents(shard) for shard in shards]
    merge_runs(shards, tmp_path / "merged")
    assert [contents(shard) for shard in shards] == before


def test_parts_of_parts(tmp_path):
    for number in range(3):
        make(tmp_path / str(number), range(number, COUNT, 3))
    merge_runs([tmp_path / "2", tmp_path / "0"], tmp_path / "two")
    merge_runs([tmp_path / "1", tmp_path / "two"], tmp_path / "three")
    merge_runs([tmp_path / str(number) for number in range(3)], tmp_path / "at once")
    assert contents(tmp_path / "three") == contents(tmp_path / "at once")


def test_inputs_that_failed_stay_so(tmp_path):
    make(tmp_path / "a", range(5), data=images(Grey))
    make(tmp_path / "b", range(5, COUNT), data=images(Grey))
    merged = merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert [row["index"] for row in merged.errors] == [4]


def test_all_hosts_are_named(shards, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name, content in contents(shards[1]).items():
        (folder / name).write_bytes(content)
    values = {**runs.open(folder).manifest.values, "host": "elsewhere", "created": "2999-01-01T00:00:00+00:00"}
    (folder / "run.json").unlink()
    Manifest(values).write(folder)
    merged = merge_runs([folder, shards[0]], tmp_path / "merged").manifest.values
    here = runs.open(shards[0]).manifest.values
    assert merged["host"] == f"elsewhere, {here['host']}"
    assert merged["python"] == here["python"]
    assert merged["created"].startswith("2999")


@pytest.mark.parametrize(
    ("settings", "told", "advice"),
    [
        ({"seed": 2}, "seed: 1 -> 2", "the same --seed"),
        ({"seed": None}, "key: ", "the same --seed"),
        ({"batch_size": 64}, "plan.batch_size: 128 -> 64", "the same --plan, --batch-size and --chunk"),
        ({"sigma": 0.5}, "sigma: 0.25 -> 0.5", "the same settings"),
        ({"alpha": 0.01}, "alpha: 0.001 -> 0.01", "the same settings"),
        ({"kind": "predict"}, 'kind: "certify" -> "predict"', "the same settings"),
    ],
    ids=str,
)
def test_other_settings_are_refused_and_named(shards, tmp_path, settings, told, advice):
    make(tmp_path / "other", [0, 2], **settings)
    with pytest.raises(ResumeError) as caught:
        merge_runs([shards[0], tmp_path / "other"], tmp_path / "merged")
    assert told in str(caught.value)
    assert advice in str(caught.value)
    assert "indices" not in str(caught.value)
    assert not (tmp_path / "merged").exists()


def test_other_data_is_refused(shards, tmp_path):
    data = ArrayData(images().inputs + 1, images().labels, None, "noise")
    make(tmp_path / "other", [0, 2], data=data)
    with pytest.raises(ResumeError, match=r"data\.fingerprint"):
        merge_runs([shards[0], tmp_path / "other"], tmp_path / "merged")


def test_inputs_in_several_parts_are_refused_naming_the_first(shards, tmp_path):
    make(tmp_path / "some", [0, 5, 3])
    with pytest.raises(ConfigError, match=r"input 3 is in .*odd and in .*some, and so are 1 more\. Leave one out"):
        merge_runs([shards[0], tmp_path / "some"], tmp_path / "merged")
    with pytest.raises(ConfigError, match="input 1 is in"):
        merge_runs([shards[0], shards[0]], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_unfinished_parts_are_refused(shards, tmp_path):
    make(tmp_path / "cut", [0, 2, 4])
    file = tmp_path / "cut" / "certificates.jsonl"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ResumeError, match=r"cut has 2 of 3 rows\. Finish it with --resume first"):
        merge_runs([shards[0], tmp_path / "cut"], tmp_path / "merged")


def test_damaged_and_missing_parts_are_refused(shards, tmp_path):
    make(tmp_path / "damaged", [0, 2, 4])
    file = tmp_path / "damaged" / "certificates.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"index":2', b'"index":6'))
    with pytest.raises(ResumeError, match="damaged in line 2"):
        merge_runs([shards[0], tmp_path / "damaged"], tmp_path / "merged")
    with pytest.raises(ResumeError, match=r"there is no run\.json"):
        merge_runs([shards[0], tmp_path / "nothing"], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_logs_of_different_runs_are_refused(tmp_path):
    for number in range(2):
        log = tmp_path / f"log{number}"
        log.write_text(f"idx\tlabel\tpredict\tradius\tcorrect\ttime\n{number}\t1\t1\t0.5\t1\t1.0\n")
        import_log(log, tmp_path / str(number), sigma=0.5, alpha=0.001)
    with pytest.raises(ResumeError, match=r"log\.sha256"):
        merge_runs([tmp_path / "0", tmp_path / "1"], tmp_path / "merged")


@pytest.mark.parametrize("count", [0, 1])
def test_it_takes_two(shards, tmp_path, count):
    with pytest.raises(ConfigError, match=f"at least two runs to merge, got {count}"):
        merge_runs(shards[:count], tmp_path / "merged")


def test_nothing_is_overwritten(shards, tmp_path):
    merge_runs(shards, tmp_path / "merged")
    before = contents(tmp_path / "merged")
    for out in (tmp_path / "merged", shards[0]):
        with pytest.raises(ConfigError, match="nothing is overwritten"):
            merge_runs(shards, out)
    assert contents(tmp_path / "merged") == before
    with pytest.raises(OutputError, match="there is no folder"):
        merge_runs(shards, tmp_path / "missing" / "merged")
