"""Partitions of flwr-datasets and ours: the same rows either way."""

import numpy as np
import pytest
import torch

from fedbook import FedbookError
from fedbook.data import Dataset
from fedbook.federation import Federation

REASON = "needs flwr-datasets: pip install 'fedbook[flower]'"
theirs = pytest.importorskip("flwr_datasets.partitioner", reason=REASON)
pytest.importorskip("flwr", reason=REASON)

from fedbook.flower import datasets  # noqa: E402


@pytest.fixture
def digits():
    """120 samples of four classes in two domains; the last 40 are for testing."""
    return Dataset(
        name="made",
        x=torch.arange(120.0)[:, None],
        y=torch.arange(120) % 4,
        split=torch.arange(120) // 80,
        domain=torch.arange(120) // 2 % 2,
        class_names=["a", "b", "c", "d"],
        domain_names=["photo", "sketch"],
    )


@pytest.mark.parametrize(
    "partitioner",
    [
        theirs.IidPartitioner(5),
        theirs.DirichletPartitioner(5, "label", alpha=1.0, min_partition_size=1, seed=0),
        theirs.PathologicalPartitioner(4, "label", 2),
        theirs.NaturalIdPartitioner("domain"),
    ],
    ids=lambda p: type(p).__name__,
)
def test_their_partitions_are_federations(digits, partitioner):
    federation = datasets.federate(digits, partitioner)
    held = torch.cat([c.train for c in federation.clients])
    assert torch.equal(held.sort().values, torch.arange(80))  # every training sample once
    for k, c in enumerate(federation.clients):
        part = partitioner.load_partition(k)
        assert sorted(part["row"]) == c.train.tolist()
        assert sorted(part["label"]) == sorted(federation.y[c.train].tolist())
    assert federation.provenance["partition"] == {"name": type(partitioner).__name__}


def test_natural_ids_are_domains(digits):
    federation = datasets.federate(digits, theirs.NaturalIdPartitioner("domain"))
    assert [c.type for c in federation.clients] == [0, 1]


def test_ours_go_there_and_come_back(digits):
    parts = [np.array([3, 1, 2]), np.array([70, 9]), np.array([40])]
    federation = Federation.from_dataset(digits, parts, test="match")
    ours = datasets.partitioner(federation)
    ours.dataset = datasets.table(digits, np.arange(120))
    assert ours.num_partitions == 3
    assert [list(ours.load_partition(k)["row"]) for k in range(3)] == [[3, 1, 2], [70, 9], [40]]
    with pytest.raises(FedbookError, match="no partition 3"):
        ours.load_partition(3)
    again = datasets.partitioner(federation)
    back = datasets.split(digits, again, np.arange(120))
    assert [p.tolist() for p in back] == [[1, 2, 3], [9, 70], [40]]
