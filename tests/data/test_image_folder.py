from __future__ import annotations

import os

import numpy as np
import pytest

from data.making import write_image
from smoothcert.data.image_folder import load_folder
from smoothcert.data.images import Preparation
from smoothcert.data.wnids import wnids
from smoothcert.errors import ConfigError, InputError

AS_IS = Preparation()


def filled(folder, *names):
    for seed, name in enumerate(names):
        write_image(folder / name, seed=seed)
    return folder


def test_subfolders_are_the_classes_in_sorted_order_and_files_sorted_within(tmp_path):
    filled(tmp_path, "dog/b.png", "cat/2.png", "cat/10.png", "Emu/x.JPG", "dog/sub/a.png", "dog/a-b.png")
    data = load_folder(tmp_path, "test", AS_IS)
    assert data.classes == ("Emu", "cat", "dog")
    assert data.files == ("Emu/x.JPG", "cat/10.png", "cat/2.png", "dog/a-b.png", "dog/b.png", "dog/sub/a.png")
    assert data.labels.tolist() == [0, 1, 1, 2, 2, 2]


def test_nested_folders_are_in_the_order_in_which_torchvision_walks_them(tmp_path):
    names = ["c/z.png", "c/a/b/1.png", "c/a-b/2.png", "c/a/3.png", "c/A/4.png"]
    filled(tmp_path, *names)
    walked = [
        os.path.relpath(os.path.join(root, file), tmp_path)
        for root, _, files in sorted(os.walk(tmp_path / "c", followlinks=True))
        for file in sorted(files)
    ]
    assert list(load_folder(tmp_path, "test", AS_IS).files) == walked


def test_hidden_files_and_other_suffixes_are_skipped(tmp_path):
    filled(tmp_path, "cat/1.png")
    for name in ("cat/.2.png", "cat/readme.txt", "cat/3.tif", ".hidden/4.png", "cat/.git/5.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    data = load_folder(tmp_path, "test", AS_IS)
    assert (data.files, data.classes) == (("cat/1.png",), ("cat",))


def test_images_without_classes_have_no_labels(tmp_path):
    data = load_folder(filled(tmp_path, "b.png", "a.png"), "test", AS_IS)
    assert (data.files, data.labels, data.classes) == (("a.png", "b.png"), None, None)


@pytest.mark.parametrize("name", ["labels.csv", "labels.tsv", "index.tsv"])
def test_a_label_file_beside_the_images_is_used(tmp_path, name):
    filled(tmp_path, "b.png", "a.png")
    separator = "," if name.endswith("csv") else "\t"
    (tmp_path / name).write_text(f"file{separator}label\nb.png{separator}7\na.png{separator}3\n")
    assert load_folder(tmp_path, "test", AS_IS).labels.tolist() == [3, 7]


def test_a_label_file_that_is_named_wins(tmp_path):
    filled(tmp_path / "images", "b.png", "a.png")
    (tmp_path / "images" / "labels.csv").write_text("file,label\na.png,1\nb.png,1\n")
    (tmp_path / "mine.txt").write_text("5\n6\n")
    assert load_folder(tmp_path / "images", "test", AS_IS, labels=tmp_path / "mine.txt").labels.tolist() == [5, 6]


def test_a_label_file_beside_class_folders_is_refused(tmp_path):
    filled(tmp_path, "cat/1.png")
    with pytest.raises(ConfigError, match=r"Expected no label file"):
        load_folder(tmp_path, "test", AS_IS, labels=tmp_path / "labels.csv")


@pytest.mark.parametrize("names", [(), ("cat/readme.txt",), (".1.png",)])
def test_a_folder_without_images_is_refused(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=r"Expected images .*got none"):
        load_folder(tmp_path, "test", AS_IS)


def test_an_empty_class_folder_is_refused_as_it_would_shift_all_labels_behind_it(tmp_path):
    filled(tmp_path, "cat/1.png", "emu/1.png")
    (tmp_path / "dog").mkdir()
    with pytest.raises(InputError, match=r"got none in dog"):
        load_folder(tmp_path, "test", AS_IS)


def test_images_beside_class_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"got both"):
        load_folder(filled(tmp_path, "cat/1.png", "2.png"), "test", AS_IS)


def test_a_part_of_imagenet_keeps_the_labels_of_the_whole(tmp_path):
    data = load_folder(filled(tmp_path, f"{wnids()[281]}/1.JPEG", f"{wnids()[7]}/2.JPEG"), "test", AS_IS)
    assert data.labels.tolist() == [7, 281]
    assert data.classes == wnids()


def test_an_unknown_wordnet_id_is_named(tmp_path):
    with pytest.raises(InputError, match=r"n99999999"):
        load_folder(filled(tmp_path, f"{wnids()[0]}/1.JPEG", "n99999999/2.JPEG"), "test", AS_IS)


@pytest.mark.parametrize(
    ("split", "entered"), [("test", "test"), ("train", "train"), ("val", "val"), ("validation", "val")]
)
def test_the_folder_of_a_split_is_entered(tmp_path, split, entered):
    filled(tmp_path, *(f"{one}/{one}-class/1.png" for one in ("train", "val", "test")))
    data = load_folder(tmp_path, split, AS_IS)
    assert data.classes == (f"{entered}-class",)
    assert data.name == f"{tmp_path.name} ({entered})"


def test_a_split_that_is_missing_is_never_replaced_by_another(tmp_path):
    filled(tmp_path, "train/cat/1.png", "val/cat/1.png", "notes/x.png")
    with pytest.raises(InputError, match=r"Expected a folder test in .*got train, val"):
        load_folder(tmp_path, "test", AS_IS)


def test_a_class_may_be_called_train(tmp_path):
    data = load_folder(filled(tmp_path, "car/1.png", "plane/1.png", "train/1.png"), "train", AS_IS)
    assert data.classes == ("car", "plane", "train")


def test_links_are_followed_but_not_in_circles(tmp_path):
    outside = filled(tmp_path / "outside", "far.png")
    filled(tmp_path / "data", "cat/1.png")
    (tmp_path / "data" / "cat" / "link").symlink_to(outside)
    (tmp_path / "data" / "cat" / "loop").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "cat" / "self").symlink_to(tmp_path / "data" / "cat")
    (tmp_path / "data" / "cat" / "gone.png").symlink_to(tmp_path / "nowhere")
    assert load_folder(tmp_path / "data", "test", AS_IS).files == ("cat/1.png", "cat/link/far.png")


def test_a_deep_nest_is_no_trouble(tmp_path):
    deep = "/".join(["d"] * 400)
    assert load_folder(filled(tmp_path, f"cat/{deep}/1.png"), "test", AS_IS).files == (f"cat/{deep}/1.png",)


def test_names_that_are_no_text_or_steer_the_terminal_are_read_and_shown_escaped(tmp_path):
    strange = "a\tb\n\x1b[2J.png"
    odd = os.fsdecode(b"\xff\xfe.png")
    filled(tmp_path, f"=cmd()/{strange}", f"=cmd()/{odd}")
    data = load_folder(tmp_path, "test", AS_IS)
    assert set(data.files) == {f"=cmd()/{strange}", f"=cmd()/{odd}"}
    assert data[0].shape == data[1].shape == (3, 4, 5)
    assert data.fingerprint().startswith("sha256:")
    (tmp_path / "=cmd()" / strange).write_bytes(b"")
    with pytest.raises(InputError) as caught:
        data[data.files.index(f"=cmd()/{strange}")]
    assert "a\\tb\\n\\x1b[2J.png" in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read the folder .*none"):
        load_folder(tmp_path / "none", "test", AS_IS)


def test_an_image_is_the_one_in_its_file(tmp_path):
    data = load_folder(filled(tmp_path, "cat/1.png", "dog/1.png"), "test", AS_IS)
    assert not np.array_equal(data[0], data[1])
    np.testing.assert_array_equal(data[1], write_image(tmp_path / "again.png", seed=1))
