"""A saved model predicts as the trained one did, needs no data to be loaded, and no pickle ever
is."""

import pytest
import torch

from fedbook import FedbookError, load_model
from fedbook.experiment import Experiment
from fedbook.saved import Save

METHODS = {
    "fedavg": {},
    "fedgcr": {"model": "fedgc"},
    "fgpt": {"model": "fgpt"},
    "moon": {"projection": 16},
    "fedmix": {},
    "harmofl": {},
    "grp_fed": {},
}


def experiment(name, model="cnn", **options):
    return Experiment(
        dataset={"name": "digits5_offline", "size": 16},
        partition={"name": "by_domain", "dif": 1, "sizes": "rule", "scale": 0.003},
        model={"name": model},
        method={"name": name, **options},
        rounds=1,
        scale="smoke",
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_model_predicts_as_the_trained_one(name, tmp_path):
    e = experiment(name, **METHODS[name])
    seen = []

    def look(run, record):
        run.load(run.params)
        x = run.federation.batch(torch.arange(6)) if hasattr(run.federation, "batch") else None
        seen.append((x, run))

    e.run(callbacks=[look, Save(tmp_path / "m.safetensors", e)])
    run = seen[-1][1]
    loaded = load_model(tmp_path / "m.safetensors")
    assert loaded.about["key"] == e.key and not loaded.training
    clients = run.federation.clients
    run.load(run.params)
    mine = run.evaluate(run.model, list(clients))
    theirs = run.evaluate(loaded, list(clients))
    assert mine.acc == theirs.acc and mine.loss == pytest.approx(theirs.loss, abs=1e-6)


def test_what_cannot_be_loaded_is_said(tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "m.pt")
    for path, what in (("m.pt", "no safetensors file"), ("none.safetensors", "there is no file")):
        with pytest.raises(FedbookError, match=what):
            load_model(tmp_path / path)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(FedbookError, match="not written by fedbook"):
        load_model(tmp_path / "other.safetensors")


def test_only_global_models_are_saved_and_only_as_safetensors(tmp_path):
    e = experiment("local")
    with pytest.raises(FedbookError, match="no global model"):
        e.run(callbacks=[Save(tmp_path / "m.safetensors", e)])
    assert not list(tmp_path.iterdir())
    with pytest.raises(FedbookError, match="end the name in .safetensors"):
        Save(tmp_path / "m.pt", e)
