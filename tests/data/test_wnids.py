from __future__ import annotations

import pytest

from smoothcert.data.wnids import wnid_labels, wnids
from smoothcert.errors import InputError


def test_there_are_1000_sorted_ids():
    assert len(set(wnids())) == 1000
    assert list(wnids()) == sorted(wnids())


@pytest.mark.parametrize(
    ("wnid", "label"), [("n01440764", 0), ("n01882714", 105), ("n02123045", 281), ("n15075141", 999)]
)
def test_well_known_classes_have_their_well_known_labels(wnid, label):
    assert wnid_labels([wnid], "test").tolist() == [label]


def test_names_that_are_no_ids_are_left_alone():
    assert wnid_labels(["n01440764", "cat"], "test") is None
    assert wnid_labels([], "test") is None
    assert wnid_labels(["n014407641"], "test") is None


def test_an_id_that_imagenet_lacks_is_named():
    with pytest.raises(InputError, match=r"in here, got n00000001, which is none"):
        wnid_labels(["n01440764", "n00000001"], "here")
