"""ImageNet's 1,000 classes: a network's outputs are in the order of their sorted WordNet ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from smoothcert.data.names import printable
from smoothcert.errors import InputError

_WNID = re.compile(r"n\d{8}")


@cache
def wnids() -> tuple[str, ...]:
    """The ids of the classes of ILSVRC 2012, sorted: place 0 is label 0."""
    return tuple((files("smoothcert.data") / "imagenet_wnids.txt").read_text("ascii").split())


def wnid_labels(names: Sequence[str], source: str) -> npt.NDArray[np.int64] | None:
    """The label of each name if all look like WordNet ids, else None; InputError for an id that ImageNet lacks.

    A part of ImageNet must not be numbered by itself: its third class is not the network's third.
    """
    if not names or not all(_WNID.fullmatch(name) for name in names):
        return None
    places = {wnid: place for place, wnid in enumerate(wnids())}
    strange = next((name for name in names if name not in places), None)
    if strange is not None:
        raise InputError(
            f"Expected ids of ImageNet's 1,000 classes in {source}, got {printable(strange)}, which is none of them."
        )
    return np.array([places[name] for name in names], np.int64)
