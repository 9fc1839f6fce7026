"""Partitions of flwr-datasets as ours, and ours as theirs: both are lists of row numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedbook.data import Dataset
from fedbook.errors import FedbookError
from fedbook.federation import Federation

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

ROW = "row"  # the column that says which row of our dataset a row of theirs is


def table(dataset: Dataset, rows: Any = None) -> Any:
    """Labels, domains and row numbers of our samples as a table of Hugging Face `datasets`.

    Partitioners look at labels, never at samples, so those stay where they are. `rows` is by
    default every training sample.
    """
    from datasets import Dataset as Table

    index = torch.as_tensor(np.asarray(dataset.train if rows is None else rows))
    columns = {
        ROW: index.tolist(),
        "label": dataset.y[index].tolist(),
        "domain": [dataset.domain_names[d] for d in dataset.domain[index].tolist()],
    }
    return Table.from_dict(columns)


def split(dataset: Dataset, partitioner: Partitioner, rows: Any = None) -> list[np.ndarray]:
    """The rows of our dataset that each client gets from one of their partitioners."""
    partitioner.dataset = table(dataset, rows)
    parts = []
    for k in range(partitioner.num_partitions):
        parts.append(np.sort(np.asarray(partitioner.load_partition(k)[ROW], dtype=np.int64)))
    return parts


def federate(
    dataset: Dataset, partitioner: Partitioner, test: str | Sequence[Any] = "match", seed: int = 0
) -> Federation:
    """A federation whose clients hold what one of their partitioners deals out.

    federate(data.load("digits5_offline"), DirichletPartitioner(10, "label", alpha=0.5))
    """
    note = {"partition": {"name": type(partitioner).__name__}}
    return Federation.from_dataset(
        dataset, split(dataset, partitioner), test=test, provenance=note, seed=seed
    )


def partitioner(federation: Federation) -> Partitioner:
    """One of their partitioners that deals our clients' training samples out, whatever dataset it
    is given: row i of that is sample i of the federation.
    """
    from flwr_datasets.partitioner import Partitioner as Theirs

    clients = [c.train.cpu().numpy() for c in federation.clients]

    class Ours(Theirs):
        """The clients of a fedbook federation."""

        def load_partition(self, partition_id: int) -> Any:
            if not 0 <= partition_id < len(clients):
                raise FedbookError(
                    f"no partition {partition_id}", f"there are {len(clients)}, from 0"
                )
            return self.dataset.select(clients[partition_id])

        @property
        def num_partitions(self) -> int:
            return len(clients)

    return Ours()
