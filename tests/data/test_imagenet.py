from __future__ import annotations

import numpy as np
import pytest

from data.making import write_image
from evidence import PHOTOGRAPHS
from smoothcert.data import load
from smoothcert.data.fetching import check
from smoothcert.data.wnids import wnids
from smoothcert.errors import InputError


@pytest.mark.parametrize("split", ["val", "validation", "test"])
def test_the_validation_set_in_class_folders_is_everybodys_test_set(tmp_path, split):
    write_image(tmp_path / "imagenet" / "val" / wnids()[9] / "ILSVRC2012_val_00000001.JPEG", kind="JPEG")
    data = load("ImageNet", split=split, root=tmp_path, size=2)
    assert (data.name, data.labels.tolist(), data.classes) == ("imagenet (val)", [9], wnids())
    assert data[0].shape == data.shape == (3, 2, 2)


def test_training_images_are_their_own_split(tmp_path):
    write_image(tmp_path / "imagenet" / "train" / wnids()[3] / "n0_1.JPEG", kind="JPEG")
    assert load("imagenet", split="train", root=tmp_path).labels.tolist() == [3]
    with pytest.raises(InputError, match=r"imagenet is not there"):
        load("imagenet", split="val", root=tmp_path)


def test_flat_images_need_a_label_file(tmp_path):
    folder = tmp_path / "imagenet" / "val"
    for number in (1, 2):
        write_image(folder / f"ILSVRC2012_val_0000000{number}.JPEG", kind="JPEG")
    with pytest.raises(InputError, match=r"Expected a label file"):
        load("imagenet", root=tmp_path)
    (tmp_path / "val.txt").write_text("ILSVRC2012_val_00000001.JPEG 65\nILSVRC2012_val_00000002.JPEG 970\n")
    data = load("imagenet", root=tmp_path, labels=tmp_path / "val.txt")
    assert (data.labels.tolist(), data.classes) == ([65, 970], wnids())


def test_ids_of_the_development_kit_are_not_taken_for_labels(tmp_path):
    write_image(tmp_path / "imagenet" / "val" / "a.JPEG", kind="JPEG")
    (tmp_path / "ids.txt").write_text("1000\n")
    with pytest.raises(InputError, match=r"Ids from 1 to 1000 as in the development kit are in another order"):
        load("imagenet", root=tmp_path, labels=tmp_path / "ids.txt")


def test_where_it_is_missing_the_error_says_where_to_register_and_how_to_lay_it_out(tmp_path):
    with pytest.raises(InputError, match=r"val/<wnid>/\*\.JPEG.*register at https://image-net\.org") as caught:
        load("imagenet", root=tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_split_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(InputError, match=r"one of train, val, got 'extra'"):
        load("imagenet", root=tmp_path, split="extra")


def test_its_check_counts_the_images(tmp_path):
    write_image(tmp_path / "imagenet" / "val" / wnids()[9] / "1.JPEG", kind="JPEG")
    with pytest.raises(InputError, match=r"Expected 50,000 images .* got 1"):
        check("imagenet", tmp_path)


@pytest.mark.skipif(not PHOTOGRAPHS.is_dir(), reason=f"the published photographs are not there: {PHOTOGRAPHS}")
def test_published_photographs_have_the_labels_and_hashes_of_their_index():
    rows = [line.split("\t") for line in (PHOTOGRAPHS / "index.tsv").read_text().splitlines()[1:]]
    data = load(PHOTOGRAPHS, size=224)
    assert (len(data), data.shape, data.classes) == (50, (3, 224, 224), wnids())
    assert data.labels.tolist() == [int(row[1]) for row in rows]
    assert [wnids()[label] for label in data.labels] == [row[2] for row in rows]
    assert data.batch(range(50)).shape == (50, 3, 224, 224)  # every hash is checked on the way


@pytest.mark.skipif(not PHOTOGRAPHS.is_dir(), reason=f"the published photographs are not there: {PHOTOGRAPHS}")
def test_a_published_photograph_is_prepared_as_it_always_was():
    # Pinned after comparing all fifty with torchvision's Resize(256) and CenterCrop(224): not a pixel differed.
    image = load(PHOTOGRAPHS, size=224)[0]
    assert image.shape == (3, 224, 224)
    np.testing.assert_allclose(image.reshape(3, -1).mean(axis=1), [127.19, 131.59, 107.03], atol=0.5)
