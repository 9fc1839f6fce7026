"""No GPU here, so every method runs on the meta device under a guard that refuses any operation
mixing devices.

Meta tensors have no values: what is read back (`.item()`, `.tolist()`, truth values) is replaced by
a constant. What is left is exactly the question of where every tensor lives.
"""

import contextlib

import pytest
import torch
from helpers import model_for
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedbook import Device, evaluate, methods, models, simulate

COPIES = {
    torch.ops.aten._to_copy.default,
    torch.ops.aten.copy_.default,
    torch.ops.aten._foreach_copy_.default,
}


class OneDevice(TorchDispatchMode):
    """Refuses an operation on tensors of two devices; 0-dim tensors and explicit copies may mix."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = {
            t.device.type
            for t in tree_leaves((args, kwargs))
            if isinstance(t, Tensor) and t.ndim > 0
        }
        if len(found) > 1 and func not in COPIES:
            raise AssertionError(f"{func} mixes {sorted(found)}")
        return func(*args, **kwargs)


@contextlib.contextmanager
def unreadable(monkeypatch):
    """Reading a meta tensor gives ones, since there is nothing to read."""
    plain = {
        name: getattr(Tensor, name)
        for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu")
    }

    def ones(t):
        return torch.ones(t.shape, dtype=t.dtype)

    with monkeypatch.context() as patch:
        for name, real in plain.items():
            patch.setattr(
                Tensor,
                name,
                lambda t, *a, _r=real, _n=name, **k: _r(ones(t) if t.is_meta else t, *a, **k),
            )
        unique = torch.unique  # its size depends on values
        patch.setattr(
            torch,
            "unique",
            lambda t, **k: (t, torch.zeros_like(t)) if t.is_meta else unique(t, **k),
        )
        patch.setattr(
            torch,
            "repeat_interleave",
            lambda t: torch.zeros(SAMPLES, dtype=torch.int64, device=t.device),
        )
        patch.setattr(
            torch, "bincount", lambda t, *a, minlength=0: torch.ones(minlength, device=t.device)
        )
        patch.setattr(
            "fedbook.rounds.evaluation.score", lambda owner, clients, **_: NOTHING(clients)
        )
        yield


SAMPLES = 24


def NOTHING(clients):
    from fedbook.rounds import Scores

    return Scores([1.0] * clients, [1.0] * clients, [1.0] * clients)


@pytest.mark.parametrize("name", methods.names())
def test_no_stray_cpu_tensor(name, images, monkeypatch):
    federation = images.to("meta")
    run = simulate(
        methods.get(name, batch_size=8),
        federation,
        model_for(name, images),
        2,
        device="meta",
        quiet=True,
    )
    with unreadable(monkeypatch), OneDevice():
        run.run()
    assert all(t.is_meta for t in run.params.values())


def test_the_guard_notices_a_stray_tensor(images, monkeypatch):
    from fedbook.rounds import CrossEntropy

    class Stray(CrossEntropy):
        def __call__(self, local, batch, sent, memory):
            return (
                super().__call__(local, batch, sent, memory) + (batch.logits * torch.ones(4)).sum()
            )

    run = simulate(
        methods.get("fedavg").replace(objective=(Stray(),)),
        images.to("meta"),
        model_for("fedavg", images),
        1,
        device="meta",
        quiet=True,
    )
    with (
        unreadable(monkeypatch),
        OneDevice(),
        pytest.raises((AssertionError, RuntimeError), match="mixes|devices"),
    ):
        run.run()


def params_of(images, device):
    run = simulate(
        methods.get("fedavg", lr=0.05, batch_size=8),
        images,
        models.build("cnn", images, width=4, hidden=8),
        2,
        device=device,
        quiet=True,
    )
    return run.run().params


def test_channels_last_changes_the_layout_not_the_result(images):
    plain, last = params_of(images, "cpu"), params_of(images, Device("cpu", channels_last=True))
    assert all(torch.allclose(plain[n], last[n], atol=1e-5) for n in plain)
    assert last["features.0.weight"].is_contiguous(memory_format=torch.channels_last)


def test_bf16_trains_with_float32_parameters(images):
    plain, half = params_of(images, "cpu"), params_of(images, Device("cpu", bf16=True))
    assert all(t.dtype == torch.float32 for t in half.values())
    assert all(torch.allclose(plain[n], half[n], atol=0.05) for n in plain)
    assert any(not torch.equal(plain[n], half[n]) for n in plain)


def test_compile_is_asked_of_embed(images, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda f: asked.append(f.__name__) or f)
    params_of(images, Device("cpu", compile=True))
    assert asked == ["embed"]


def test_a_classifier_is_tested_in_the_fast_format_and_says_the_same(images):
    """Only the order in memory changes, and only for networks that do not mind."""
    model = models.build("cnn", images, width=4, hidden=8)
    seen = []
    model.features.register_forward_pre_hook(
        lambda _, x: seen.append(x[0].is_contiguous(memory_format=torch.channels_last))
    )
    scores = []
    for model.any_format in (True, False):
        scores.append(evaluate(model, images))
    assert seen == [True, False]
    assert scores[0].acc == scores[1].acc
    assert scores[0].loss == pytest.approx(scores[1].loss, abs=1e-6)
