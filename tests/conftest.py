"""Small federations that every test may use, and a time limit for those with processes."""

import signal

import pytest
import torch
from helpers import PROCESS_SECONDS

from fedbook import Federation

torch.set_num_threads(1)


@pytest.fixture
def toy() -> Federation:
    """Four clients of two types, 5-d inputs, three classes, of unequal size."""
    g = torch.Generator().manual_seed(0)
    clients = []
    for k, n in enumerate((8, 12, 20, 40)):
        y = torch.randint(0, 3, (n + 6,), generator=g)
        x = torch.randn(n + 6, 5, generator=g) + y[:, None] + (k % 2)
        clients.append({"train": (x[:n], y[:n]), "test": (x[n:], y[n:]), "type": k % 2})
    return Federation.from_arrays(clients, class_names=["a", "b", "c"], type_names=["even", "odd"])


@pytest.fixture
def images() -> Federation:
    """Six clients with 8x8 uint8 images of four classes."""
    g = torch.Generator().manual_seed(1)
    clients = []
    for k in range(6):
        y = torch.arange(24) % 4
        x = torch.randint(0, 120, (24, 3, 8, 8), generator=g, dtype=torch.uint8)
        for i, c in enumerate(y.tolist()):
            x[i, :, 2 * c : 2 * c + 2] += 100
        clients.append({"train": (x[:16], y[:16]), "test": (x[16:], y[16:]), "type": k // 3})
    return Federation.from_arrays(clients, type_names=["one", "two"])


@pytest.fixture(autouse=True)
def hard_limit(request):
    """A test marked `processes` ends after so many seconds, whatever its processes do."""
    if request.node.get_closest_marker("processes") is None:
        yield
        return

    def stop(*_):
        raise TimeoutError(f"longer than {PROCESS_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PROCESS_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
