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
    "grp_fed": {},
}


def experiment(name, model="mlp", **options):
    return Experiment(
        dataset={"name": "digits5_offline"},
        partition={"name": "by_domain", "dif": 1, "limit": [8, 4]},
        model={"name": model},
        method={"name": name, **options},
        rounds=1,
        scale="smoke",
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_model_predicts_as_the_trained_one(name, tmp_path):
    e = experiment(name, **METHODS[name])
    runs = []
    e.run(callbacks=[lambda run, record: runs.append(run), Save(tmp_path / "m.safetensors", e)])
    [run] = runs
    loaded = load_model(tmp_path / "m.safetensors")
    assert loaded.about["key"] == e.key and not loaded.training
    some = list(run.federation.clients[::3])
    run.load(run.params)
    mine, theirs = run.evaluate(run.model, some), run.evaluate(loaded, some)
    assert mine.acc == theirs.acc and mine.loss == pytest.approx(theirs.loss, abs=1e-6)


def test_a_network_that_needs_the_data_is_not_saved(tmp_path):
    """Harmo-FL divides by the mean amplitude of the clients' images, which is no weight."""
    e = experiment("harmofl")
    with pytest.raises(FedbookError, match="needs the clients' data"):
        e.run(callbacks=[Save(tmp_path / "m.safetensors", e)])
    assert not list(tmp_path.iterdir())


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
