from __future__ import annotations

import sys

import numpy as np
import pytest

from data.making import random_images, write_image
from smoothcert.data import load
from smoothcert.errors import ConfigError, InputError, MissingExtraError

PIXELS = [random_images((6, 5, 3), seed) for seed in range(3)]


@pytest.fixture(scope="module", autouse=True)
def _offline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        yield


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        module = pytest.importorskip("datasets")
        module.disable_progress_bars()
        yield module


def table(datasets, labels=None, **columns):
    from PIL import Image

    images = [Image.fromarray(pixels) for pixels in PIXELS]
    features = {"id": datasets.Value("int64"), "picture": datasets.Image()}
    content = {"id": [0, 1, 2], "picture": images, **columns}
    if labels is not None:
        features["label"] = labels
        content["label"] = [1, 0, 1]
    return datasets.Dataset.from_dict(content, features=datasets.Features(features))


@pytest.fixture(scope="module")
def saved(datasets, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "pets"
    table(datasets, datasets.ClassLabel(names=["cat", "dog"])).save_to_disk(folder)
    return folder


def test_a_saved_data_set_gives_back_images_labels_and_class_names(saved):
    data = load(f"hf:{saved}")
    assert (len(data), data.shape, data.classes) == (3, (3, 6, 5), ("cat", "dog"))
    assert data.labels.tolist() == [1, 0, 1]
    assert data.labels.dtype == np.int64
    for index in range(3):
        np.testing.assert_array_equal(data[index], PIXELS[index].transpose(2, 0, 1))
    with pytest.raises(IndexError):
        data[3]


def test_images_are_prepared_like_image_files(saved):
    data = load(f"hf:{saved}", size=4, channels=1)
    assert data.shape == data[0].shape == (1, 4, 4)
    assert load(f"hf:{saved}").fingerprint() == load(f"hf:{saved}").fingerprint() != data.fingerprint()


def test_the_fingerprint_is_that_of_the_content(datasets, saved, tmp_path):
    table(datasets, datasets.ClassLabel(names=["cat", "dog"])).save_to_disk(tmp_path / "again")
    assert load(f"hf:{saved}").fingerprint() == load(f"hf:{tmp_path / 'again'}").fingerprint()
    table(datasets, datasets.ClassLabel(names=["cat", "dog"])).select([2, 1, 0]).save_to_disk(tmp_path / "other")
    assert load(f"hf:{saved}").fingerprint() != load(f"hf:{tmp_path / 'other'}").fingerprint()


def test_plain_numbers_are_labels_without_names(datasets, tmp_path):
    table(datasets, datasets.Value("int32")).save_to_disk(tmp_path / "numbers")
    data = load(f"hf:{tmp_path / 'numbers'}")
    assert (data.labels.tolist(), data.classes) == ([1, 0, 1], None)


def test_images_without_labels_have_none(datasets, tmp_path):
    table(datasets).save_to_disk(tmp_path / "bare")
    assert load(f"hf:{tmp_path / 'bare'}").labels is None


def test_labels_that_are_no_whole_numbers_are_refused(datasets, tmp_path):
    table(datasets, datasets.Value("float32")).save_to_disk(tmp_path / "floats")
    with pytest.raises(InputError, match=r"Expected 3 whole numbers as labels in hf:"):
        load(f"hf:{tmp_path / 'floats'}")


def test_a_split_is_taken_from_several_or_its_absence_named(datasets, tmp_path):
    one = table(datasets, datasets.ClassLabel(names=["cat", "dog"]))
    datasets.DatasetDict({"train": one, "test": one.select([2])}).save_to_disk(tmp_path / "both")
    assert len(load(f"hf:{tmp_path / 'both'}")) == 1
    assert len(load(f"hf:{tmp_path / 'both'}", split="train")) == 3
    with pytest.raises(InputError, match=r"one of train, test, got 'val'"):
        load(f"hf:{tmp_path / 'both'}", split="val")


def test_a_table_without_images_is_refused(datasets, tmp_path):
    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(tmp_path / "text")
    with pytest.raises(InputError, match=r"Expected a column of images in .*got text: Value"):
        load(f"hf:{tmp_path / 'text'}")


def test_images_go_through_the_same_checks_as_files(datasets, tmp_path):
    write_image(tmp_path / "good.png")
    cells = [{"bytes": b"GIF89a...", "path": None}, {"bytes": None, "path": str(tmp_path / "good.png")}, None]
    features = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict({"image": cells}, features=features).save_to_disk(tmp_path / "odd")
    data = load(f"hf:{tmp_path / 'odd'}")
    with pytest.raises(InputError, match=r"in input 0 of .*got GIF"):
        data[0]
    assert data[1].shape == (3, 4, 5)
    with pytest.raises(InputError, match=r"Expected an image as input 2"):
        data[2]


def test_an_unknown_name_is_one_line_with_the_reason(datasets, tmp_path):
    with pytest.raises(InputError, match=r"Cannot load hf:nobody/nothing-here, split test: ") as caught:
        load("hf:nobody/nothing-here")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_damaged_folder_is_refused(saved, datasets, tmp_path):
    import shutil

    shutil.copytree(saved, tmp_path / "damaged")
    for file in (tmp_path / "damaged").glob("*.arrow"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match=r"Cannot load hf:"):
        load(f"hf:{tmp_path / 'damaged'}")


def test_a_label_file_is_refused(saved, tmp_path):
    with pytest.raises(ConfigError, match=r"Expected no label file"):
        load(f"hf:{saved}", labels=tmp_path / "labels.txt")


def test_says_which_extra_to_install_when_datasets_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"datasets is needed.*smoothcert\[datasets\]"):
        load("hf:anything")
