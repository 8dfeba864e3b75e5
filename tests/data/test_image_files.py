from __future__ import annotations

import hashlib

import numpy as np
import pytest

from data.making import write_image
from smoothcert.data.image_files import ImageFiles
from smoothcert.data.images import Preparation
from smoothcert.errors import InputError


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(("a.png", "b.png", "c.png")):
        write_image(tmp_path / name, seed=seed, shape=(4 + (seed == 2), 5, 3))
    return tmp_path


def made(folder, files=("a.png", "b.png"), labels=(0, 1), preparation=None, sha256=None):
    known = None if labels is None else np.array(labels)
    return ImageFiles(folder, files, known, None, "mine", preparation or Preparation(), sha256)


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    data = made(tmp_path, ("gone.png", "away.png"))
    assert len(data) == 2
    assert made(tmp_path, preparation=Preparation((8, 6))).shape == (3, 8, 6)
    with pytest.raises(InputError, match=r"Cannot read .*away\.png"):
        data[1]
    with pytest.raises(InputError, match=r"Cannot read .*gone\.png"):
        data.fingerprint()


def test_a_batch_of_equal_shapes_is_one_array(folder):
    data = made(folder, ("a.png", "b.png", "c.png"), None)
    assert data.batch([1, 0]).shape == (2, 3, 4, 5)
    with pytest.raises(InputError, match=r"different shapes"):
        data.batch([0, 2])
    assert made(folder, ("a.png", "b.png", "c.png"), None, Preparation((3, 3))).batch(range(3)).shape == (3, 3, 3, 3)


def test_the_shape_is_known_where_all_images_share_it(folder):
    assert made(folder).shape == (3, 4, 5)
    assert made(folder, preparation=Preparation(channels=1)).shape == (1, 4, 5)
    assert made(folder, ("a.png", "c.png")).shape is None


def test_a_file_that_is_not_the_one_of_the_label_file_is_refused_when_it_is_read(folder):
    right = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("a.png", "b.png")]
    data = made(folder, sha256=tuple(right))
    assert data[1].shape == (3, 4, 5)
    write_image(folder / "b.png", seed=9)
    assert data[0].shape == (3, 4, 5)
    with pytest.raises(InputError, match=r"b\.png to have the sha256"):
        data[1]


def test_the_fingerprint_changes_with_names_sizes_labels_hashes_and_preparation(folder):
    prints = [
        made(folder).fingerprint(),
        made(folder, ("b.png", "a.png")).fingerprint(),
        made(folder, ("a.png", "c.png")).fingerprint(),
        made(folder, labels=(1, 0)).fingerprint(),
        made(folder, labels=None).fingerprint(),
        made(folder, sha256=("0" * 64,) * 2).fingerprint(),
        *(made(folder, preparation=one).fingerprint() for one in (Preparation((4, 4)), Preparation((4, 4), crop=1.0))),
        made(folder, preparation=Preparation(channels=1)).fingerprint(),
    ]
    (folder / "b.png").write_bytes((folder / "b.png").read_bytes() + b"\0")
    prints.append(made(folder).fingerprint())
    assert len(set(prints)) == len(prints)


def test_the_fingerprint_does_not_depend_on_where_the_folder_is(folder, tmp_path_factory):
    moved = tmp_path_factory.mktemp("moved") / "there"
    before = made(folder).fingerprint()
    folder.rename(moved)
    assert made(moved).fingerprint() == before


def test_labels_are_checked(folder):
    with pytest.raises(InputError, match=r"Expected 2 int64 labels"):
        made(folder, labels=(0,))
