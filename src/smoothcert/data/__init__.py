"""Data sets, wherever they come from, and which of their inputs to look at."""

from smoothcert.data.dataset import ArrayData, Dataset
from smoothcert.data.fetching import check, fetch, published_folder
from smoothcert.data.known import KNOWN
from smoothcert.data.loading import load
from smoothcert.data.selection import select_indices

__all__ = ["KNOWN", "ArrayData", "Dataset", "check", "fetch", "load", "published_folder", "select_indices"]
