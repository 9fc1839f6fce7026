"""Datasets by name: offline ones from installed packages, real ones from packs in the data folder
or fetched there.
"""

from __future__ import annotations

from fedbook.data import partition
from fedbook.data.catalogue import fetch, from_folders, from_npz, info, load, names, verify
from fedbook.data.dataset import Dataset
from fedbook.data.outside import from_outside

__all__ = [
    "Dataset",
    "fetch",
    "from_folders",
    "from_npz",
    "from_outside",
    "info",
    "load",
    "names",
    "partition",
    "verify",
]
