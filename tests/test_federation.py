import dataclasses

import pytest
import torch

from fedbook import FedbookError, Federation, data, models
from fedbook.federation import Client, federate, most_frequent


def test_from_arrays_keeps_samples_once_and_points_into_them(toy):
    assert len(toy) == 4 and toy.num_classes == 3 and toy.num_types == 2 and toy.input_shape == (5,)
    assert len(toy.x) == sum(len(c.train) + len(c.test) for c in toy.clients)
    everything = torch.cat([torch.cat([c.train, c.test]) for c in toy.clients])
    assert sorted(everything.tolist()) == list(range(len(toy.x)))


def test_images_are_scaled_by_the_federation_and_normalised_by_the_model(images):
    normalised = dataclasses.replace(images, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    index = images.clients[2].train[:3]
    x = normalised.inputs(index)
    assert torch.allclose(x, images.x[index].float() / 255, atol=1e-7)
    by_hand = (x - torch.tensor([0.5, 0.4, 0.3])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[
        :, None, None
    ]
    model = models.build("linear", normalised)
    assert torch.allclose(model.embed(x), by_hand.flatten(1), atol=1e-5)
    assert torch.equal(models.build("linear", images).embed(x), x.flatten(1))
    assert set(model.state_dict()) == {"head.weight", "head.bias"}  # moments are nobody's to send


def test_moments_are_one_number_per_channel(images):
    with pytest.raises(FedbookError, match="one number per channel"):
        dataclasses.replace(images, mean=(0.5,))


def test_save_and_load_give_the_same_federation(images, tmp_path):
    path = images.save(tmp_path / "deep" / "f.safetensors")
    again = Federation.load(path)
    assert again.fingerprint == images.fingerprint and again.class_names == images.class_names
    assert [c.type for c in again.clients] == [c.type for c in images.clients]
    assert [p.name for p in path.parent.iterdir()] == ["f.safetensors"]


def test_a_truncated_federation_file_is_refused(images, tmp_path):
    path = images.save(tmp_path / "f.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FedbookError, match="not a whole federation file"):
        Federation.load(path)
    with pytest.raises(FedbookError, match="no federation file"):
        Federation.load(tmp_path / "none")


def test_a_federation_file_carries_its_format(images, tmp_path, monkeypatch):
    monkeypatch.setattr("fedbook.federation.FORMAT", 2)
    path = images.save(tmp_path / "f.safetensors")
    monkeypatch.undo()
    with pytest.raises(FedbookError, match="format 2, this fedbook reads 1"):
        Federation.load(path)


def test_fingerprints_tell_samples_from_clients(toy):
    fewer = dataclasses.replace(toy, clients=toy.clients[:3])
    assert fewer.data_fingerprint == toy.data_fingerprint and fewer.fingerprint != toy.fingerprint
    x = toy.x.clone()
    x[0, 0] += 1
    assert dataclasses.replace(toy, x=x).data_fingerprint != toy.data_fingerprint


@pytest.mark.parametrize("unseen,held", [(1, 1), (0.5, 2), ([0, 3], 2)])
def test_split_clients_holds_some_out(toy, unseen, held):
    seen, rest = toy.split_clients(unseen)
    assert len(rest) == held and len(seen) == 4 - held
    assert {c.id for c in seen.clients} | {c.id for c in rest.clients} == {0, 1, 2, 3}
    assert seen.x is toy.x


@pytest.mark.parametrize("unseen", [0, 4, 1.0, [7], [0, 1, 2, 3]])
def test_split_clients_needs_both_sides(toy, unseen):
    with pytest.raises(FedbookError):
        toy.split_clients(unseen)


def test_validation_never_touches_test_samples(toy):
    held = toy.validation(0.25, seed=3)
    for before, after in zip(toy.clients, held.clients):
        assert set(after.train.tolist()) | set(after.test.tolist()) == set(before.train.tolist())
        assert len(after.test) == round(0.25 * len(before.train))
        assert not set(after.train.tolist()) & set(after.test.tolist())


def test_summary_counts(toy):
    table = toy.summary()
    assert (
        table["train"].tolist() == [8, 12, 20, 40] and table["type"].tolist() == ["even", "odd"] * 2
    )


@pytest.mark.parametrize(
    "change,message",
    [
        ({"clients": ()}, "at least one client"),
        ({"class_names": ("a", "b")}, "labels must lie in 0..1"),
        ({"y": torch.zeros(3, dtype=torch.int64)}, "one entry per sample"),
        (
            {"clients": (Client(0, 0, torch.tensor([], dtype=torch.int64), torch.tensor([0])),)},
            "no training sample",
        ),
        ({"clients": (Client(0, 5, torch.tensor([0]), torch.tensor([0])),)}, "type 5"),
        (
            {"clients": (Client(0, 0, torch.tensor([10_000]), torch.tensor([0])),)},
            "points at sample 10000",
        ),
        ({"clients": (Client(1, 0, torch.tensor([0]), torch.tensor([0])),) * 2}, "unique"),
    ],
)
def test_bad_federations_say_what_is_wrong(toy, change, message):
    with pytest.raises(FedbookError, match=message):
        dataclasses.replace(toy, **change)


def test_from_arrays_refuses_mixed_shapes():
    a, b = torch.zeros(2, 3), torch.zeros(2, 4)
    with pytest.raises(FedbookError, match=r"shape \(4,\), expected \(3,\)"):
        Federation.from_arrays([{"train": (a, [0, 1])}, {"train": (b, [0, 1])}])
    with pytest.raises(FedbookError, match="2 train samples but 3 labels"):
        Federation.from_arrays([{"train": (a, [0, 1, 1])}])


def test_a_limit_per_class_leaves_the_rest_unused():
    dataset = data.load("digits5_offline")
    fed = federate(dataset, "dirichlet", clients=5, alpha=1.0, limit=(30, 8))
    for part, most in (("train", 30), ("test", 8)):
        rows = torch.cat([getattr(c, part) for c in fed.clients])
        assert torch.bincount(dataset.y[rows]).tolist() == [most] * 10
    assert fed.provenance["partition"]["limit"] == [30, 8]
    with pytest.raises(FedbookError, match="training and test samples per class"):
        federate(dataset, "iid", clients=5, limit=(30,))


def test_a_federation_shows_as_a_short_table(toy):
    html = toy._repr_html_()
    assert html.count("<tr>") == 1 + toy.num_types and "4 clients of 2 types" in html
    assert ">even<" in html and ">28<" in html and ">8 to 20<" in html
    many = tuple(f"t{t}" for t in range(50))
    assert "and 30 more" in dataclasses.replace(toy, type_names=many)._repr_html_()
    alone = toy.split_clients([0, 2])[0]  # no client of type even is left
    assert ">0<" in alone._repr_html_()
    assert ">8<" in dataclasses.replace(toy, clients=toy.clients[:1])._repr_html_()


def test_a_client_shows_as_a_line_and_not_as_its_indices(toy):
    client = toy.client(1)
    assert repr(client) == "Client(1: type 1, 12 training and 6 test samples)"
    html = client._repr_html_()
    assert html.count("<tr>") == 2 and ">12<" in html and "tensor" not in html


def test_names_are_escaped_in_tables(toy):
    named = dataclasses.replace(toy.client(0), name="<script>")
    odd = dataclasses.replace(
        toy, clients=(named,), type_names=("<b>", "odd"), provenance={"dataset": "<i>"}
    )
    for html in (odd._repr_html_(), named._repr_html_()):
        assert not any(tag in html for tag in ("<script>", "<b>", "<i>"))
    assert "&lt;script&gt;" in named._repr_html_() and "&lt;b&gt;" in odd._repr_html_()


def test_the_index_arrays_of_all_clients_are_views_of_one():
    dataset = data.load("digits5_offline")
    federation = federate(dataset, "iid", clients=50, test="domain")
    for part in ("train", "test"):
        arrays = [getattr(c, part) for c in federation.clients]
        assert len({a.untyped_storage().data_ptr() for a in arrays}) == 1
    assert len({id(c.test) for c in federation.clients}) <= 5  # one per domain
    rows = torch.cat([c.train for c in federation.clients]).sort().values
    assert torch.equal(rows, torch.as_tensor(dataset.train))
    assert federation.to("cpu") is federation and federation.to("meta").device.type == "meta"


def test_the_type_of_a_client_is_its_most_frequent_domain():
    g = torch.Generator().manual_seed(0)
    values = torch.randint(0, 6, (200,), generator=g)
    parts = torch.randperm(200, generator=g).split([1, 2, 3, 50, 7, 137])
    wanted = [int(torch.bincount(values[p]).argmax()) for p in parts]
    assert most_frequent(values, parts) == wanted
    assert most_frequent(torch.tensor([2, 1, 1, 2]), [torch.arange(4)]) == [1]  # the smaller
