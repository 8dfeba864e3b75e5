from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.io import savemat

from data.making import COUNT, random_images, write_binary, write_idx, write_image, write_pickle
from smoothcert.data import ArrayData, load
from smoothcert.errors import ConfigError, InputError

GREY, COLOUR = random_images((COUNT, 28, 28)), random_images((COUNT, 3, 32, 32))
LABELS = np.array([3, 9, 0, 1, 5, 7])


def put_mnist(folder, prefix="t10k", suffix=""):
    write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", GREY)
    write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", LABELS.astype(np.uint8))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")])
def test_the_idx_sets_are_loaded_from_their_layouts(tmp_path, small, name, folder, suffix):
    put_mnist(tmp_path / folder, suffix=suffix)
    put_mnist(tmp_path / name, "train", suffix)
    for split in ("train", "test"):
        data = load(name, split=split, root=tmp_path)
        np.testing.assert_array_equal(data.inputs, GREY[:, None])
        assert data.labels.tolist() == LABELS.tolist()
        assert data.name == f"{name} ({split})"
        assert len(data.classes) == 10


def put_cifar10(root, version):
    if version == "binary":
        folder = root / "cifar10" / "cifar-10-batches-bin"
        for number in range(1, 6):
            write_binary(folder / f"data_batch_{number}.bin", COLOUR[[number]], LABELS[[number]])
        write_binary(folder / "test_batch.bin", COLOUR, LABELS)
        return
    folder = root / "cifar10" / "cifar-10-batches-py"
    for number in range(1, 6):
        write_pickle(
            folder / f"data_batch_{number}",
            {"data": COLOUR[[number]].reshape(1, -1), "labels": LABELS[[number]].tolist()},
        )
    write_pickle(folder / "test_batch", {"data": COLOUR.reshape(COUNT, -1), "labels": LABELS.tolist()})


@pytest.mark.parametrize("version", ["binary", "python"])
def test_cifar10_is_loaded_from_both_versions(tmp_path, small, monkeypatch, version):
    put_cifar10(tmp_path, version)
    data = load("cifar-10", root=tmp_path)
    np.testing.assert_array_equal(data.inputs, COLOUR)
    assert data.labels.tolist() == LABELS.tolist()
    assert data.classes[3] == "cat"
    with pytest.raises(InputError, match=r"Expected 6 images .* got 5"):  # five batches of one image each
        load("cifar10", split="train", root=tmp_path)


@pytest.mark.parametrize("version", ["binary", "python"])
def test_cifar100_is_loaded_from_both_versions_with_its_class_names(tmp_path, small, version):
    names = [f"class{number}" for number in range(100)]
    if version == "binary":
        write_binary(tmp_path / "cifar100" / "cifar-100-binary" / "test.bin", COLOUR, LABELS + 1, LABELS)
        (tmp_path / "cifar100" / "cifar-100-binary" / "fine_label_names.txt").write_text("\n".join(names))
    else:
        folder = tmp_path / "cifar-100-python"
        content = {"data": COLOUR.reshape(COUNT, -1), "fine_labels": LABELS.tolist(), "coarse_labels": [1] * COUNT}
        write_pickle(folder / "test", content)
        write_pickle(folder / "meta", {"fine_label_names": names})
    data = load("cifar100", root=tmp_path)
    np.testing.assert_array_equal(data.inputs, COLOUR)
    assert data.labels.tolist() == LABELS.tolist()
    assert data.classes == tuple(names)


@pytest.mark.parametrize("split", ["train", "test", "extra"])
def test_svhn_is_loaded(tmp_path, small, split):
    (tmp_path / "svhn").mkdir()
    savemat(
        tmp_path / "svhn" / f"{split}_32x32.mat",
        {"X": COLOUR.transpose(2, 3, 1, 0), "y": np.where(LABELS == 0, 10, LABELS)[:, None]},
    )
    data = load("SVHN", split=split, root=tmp_path)
    np.testing.assert_array_equal(data.inputs, COLOUR)
    assert data.labels.tolist() == LABELS.tolist()


def test_digits_need_no_files(tmp_path):
    assert len(load("digits", root=tmp_path)) == 500
    assert len(load("digits", root=tmp_path, split="train")) == 1297


def test_the_root_is_that_of_the_environment_unless_given(tmp_path, small, monkeypatch):
    put_mnist(tmp_path / "here" / "mnist")
    monkeypatch.setenv("SMOOTHCERT_DATA", str(tmp_path / "here"))
    assert len(load("mnist")) == COUNT
    with pytest.raises(InputError, match=r"mnist is not there"):
        load("mnist", root=tmp_path)


def test_missing_files_are_listed_with_their_place_and_the_command_that_fetches_them(tmp_path):
    with pytest.raises(InputError) as caught:
        load("fashion-mnist", root=tmp_path)
    assert f"t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte in {tmp_path / 'fashion-mnist'}" in str(caught.value)
    assert "`smoothcert data fetch fashion-mnist`" in str(caught.value)


def test_other_data_under_a_standard_name_are_refused(tmp_path):
    put_mnist(tmp_path / "mnist")
    with pytest.raises(InputError, match=r"Expected 10,000 images \(1, 28, 28\) in mnist \(test\), got 6"):
        load("mnist", root=tmp_path)


def test_images_and_labels_of_different_numbers_are_refused(tmp_path, small):
    put_mnist(tmp_path / "mnist")
    write_idx(tmp_path / "mnist" / "t10k-labels-idx1-ubyte", LABELS[:5].astype(np.uint8))
    with pytest.raises(InputError, match=r"Expected 6 int64 labels"):
        load("mnist", root=tmp_path)


def test_a_label_without_a_class_is_refused(tmp_path, small):
    put_mnist(tmp_path / "mnist")
    write_idx(tmp_path / "mnist" / "t10k-labels-idx1-ubyte", np.full(COUNT, 10, np.uint8))
    with pytest.raises(InputError, match=r"Expected labels from 0 to 9"):
        load("mnist", root=tmp_path)


def test_folders_and_array_files_are_told_apart(tmp_path):
    write_image(tmp_path / "photos" / "cat" / "1.png")
    np.savez(tmp_path / "a.npz", x=GREY, y=LABELS)
    np.save(tmp_path / "x.npy", GREY)
    (tmp_path / "y.txt").write_text("\n".join(map(str, LABELS)))
    assert load(str(tmp_path / "photos"), size=(2, 3), channels=1)[0].shape == (1, 2, 3)
    assert isinstance(load(tmp_path / "a.npz"), ArrayData)
    assert load(tmp_path / "x.npy", labels=tmp_path / "y.txt").labels.tolist() == LABELS.tolist()


def test_a_path_object_is_never_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_image(tmp_path / "digits" / "cat" / "1.png")
    assert load((tmp_path / "digits").relative_to(tmp_path)).classes == ("cat",)
    assert len(load("digits")) == 500


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("minst", "Did you mean 'mnist'"),
        ("none.npz", r"there is no none\.npz"),
        ("no/folder", "there is no no/folder"),
        ("", "Expected"),
    ],
)
def test_what_is_neither_a_name_nor_there_is_refused(tmp_path, monkeypatch, source, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        load(source)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "data.csv").write_text("1,2")
    with pytest.raises(InputError, match=r"a file \.npz or \.npy, got .*data\.csv"):
        load(tmp_path / "data.csv")


@pytest.mark.parametrize("wish", [{"size": 9}, {"size": (8, 9)}, {"channels": 3}, {"labels": "labels.txt"}])
def test_wishes_that_a_fixed_data_set_cannot_fulfil_are_refused(wish):
    with pytest.raises(ConfigError, match=r"Expected no"):
        load("digits", **wish)


def test_wishes_that_a_fixed_data_set_fulfils_anyway_are_fine():
    assert load("digits", size=8, channels=1).shape == (1, 8, 8)


def test_bad_preparations_are_refused_for_every_source():
    with pytest.raises(ConfigError, match=r"`crop`"):
        load("digits", crop=2)
    with pytest.raises(ConfigError, match=r"`size`"):
        load("digits", size=(8, 8, 8))


def test_importing_the_package_loads_neither_torch_nor_optional_packages():
    code = (
        "import sys, smoothcert.data; "
        "print([m for m in ('torch', 'PIL', 'sklearn', 'datasets', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
