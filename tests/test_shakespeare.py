"""Shakespeare by role: how texts are read, cut and split; no character is on both sides."""

import json

import numpy as np
import pytest
import torch

from fedbook import FedbookError, data, methods, models, simulate
from fedbook.data import shakespeare as module
from fedbook.data.shakespeare import (
    ALPHABET,
    choose,
    decode,
    encode,
    read_play,
    read_script,
    thin,
    windows,
)
from fedbook.federation import federate
from fedbook.methods.client_index import client_index
from fedbook.models import sequence

PLAY = """

           A Play
Some_homepage | A_Play | Entire play
**** ACT I ****
**** SCENE I. A road. ****
     Enter ANNA and a Clown
ANNA
     Where is the road?
     It was here.
     Exit
Clown
     Gone, madam.
**** SCENE II. Elsewhere. ****
     Nobody says this.
ANNA
     Then walk.
"""
SCRIPT = (
    "Anna:\nWhere is the road?\nIt was here.\n\nClown:\nGone, madam.\n\nAnna:\nThen "
    "walk.\n\nNot a speech\n"
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    return tmp_path


def write_play(root, name="A", words=60):
    folder = root / "shakespeare" / "plays"
    folder.mkdir(parents=True, exist_ok=True)
    roles = {"ANNA": "the road is long and ", "BEN": "never ask a sailor why ", "Short": "no"}
    text = "".join(f"{r}\n     {w * (words if r != 'Short' else 1)}\n" for r, w in roles.items())
    (folder / f"{name}.txt").write_text(text)


def test_plays_and_scripts_are_read_alike():
    spoken = [("Where is the road?"), ("It was here."), ("Gone, madam."), ("Then walk.")]
    assert list(read_play(PLAY)) == list(zip(["ANNA", "ANNA", "Clown", "ANNA"], spoken))
    assert list(read_script(SCRIPT)) == list(zip(["Anna", "Anna", "Clown", "Anna"], spoken))


def test_the_alphabet_is_leafs_eighty_and_goes_there_and_back():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    text = "Who's there? Nay, answer me: stand!"
    assert (
        decode(encode(text)) == text
        and encode("a$b\u00e9\u2014c").tolist() == encode("abc").tolist()
    )
    assert encode(ALPHABET).tolist() == list(range(80)) and encode(" ").dtype == np.int16


def test_windows_by_hand():
    """20 characters in windows of 3 + 1: 17 samples, 11 for training, 3 left out, 3 to test; of 12,
    none to test.
    """
    train, test = windows(np.arange(20, dtype=np.int16), 3, 0.3)
    assert (
        train.shape == (11, 4)
        and train[0].tolist() == [0, 1, 2, 3]
        and train[-1].tolist() == [10, 11, 12, 13]
    )
    assert test[:, 0].tolist() == [14, 15, 16] and test[-1].tolist() == [16, 17, 18, 19]
    assert not set(train.ravel()) & set(test.ravel())
    train, test = windows(np.arange(12, dtype=np.int16), 3, 0.3)
    assert len(train) == 6 and len(test) == 0
    assert all(len(part) == 0 for part in windows(np.arange(3, dtype=np.int16), 3, 0.3))


def test_thinning_and_choosing():
    rows = np.arange(10)[:, None]
    assert (
        thin(rows, 4)[:, 0].tolist() == [0, 3, 6, 9]
        and len(thin(rows, 99)) == 10
        and len(thin(rows[:0], 5)) == 0
    )
    sizes = [10] * 30
    chosen = choose(sizes, 0.1, seed=0)
    assert len(chosen) == 3 and chosen == sorted(chosen) == choose(sizes, 0.1, 0) != choose(
        sizes, 0.1, 1
    )
    assert choose(sizes, 1.0, 0) == list(range(30)) and len(choose([5, 5], 0.01, 0)) == 1


def test_a_role_of_a_play_is_a_domain(root):
    write_play(root, "A")
    write_play(root, "B")
    assert data.info("shakespeare")["status"] == "cached"
    ds = data.load("shakespeare", fraction=1.0, length=20)
    assert ds.domain_names == (
        "A: ANNA",
        "A: BEN",
        "B: ANNA",
        "B: BEN",
    )  # Short has too little to say
    assert ds.x.dtype == torch.int16 and ds.x.shape[1] == 20 and ds.class_names == tuple(ALPHABET)
    rows = torch.nonzero((ds.domain == 1) & (ds.split == 0)).flatten()
    assert decode(ds.x[rows[0]]) == "never ask a sailor w" and decode(ds.y[rows[:1]]) == "h"
    total = len("never ask a sailor why " * 60) - 1 - 20  # the last space is stripped
    assert (
        len(rows) == int(0.8 * total)
        and ((ds.domain == 1) & (ds.split == 1)).sum() == total - len(rows) - 20
    )
    assert ds.provenance["source"] == "plays" and ds.provenance["roles"] == 4 and ds.mean is None

    few = data.load("shakespeare", fraction=1.0, length=20, limit=40)
    assert [
        int(((few.domain == d) & (few.split == s)).sum()) for d in range(4) for s in (0, 1)
    ] == [40, 10] * 4
    some = data.load("shakespeare", fraction=0.3, length=20)
    assert set(some.domain_names) < set(ds.domain_names)
    assert (
        len(data.load("shakespeare", fraction=1.0, length=20, min_samples=1300).domain_names) == 2
    )


def test_leafs_files_are_taken_as_they_are(root):
    text = "the road is long and dark and cold"
    samples = {"x": [text[i : i + 8] for i in range(6)], "y": [text[i + 8] for i in range(6)]}
    for part, cut in (("train", slice(0, 4)), ("test", slice(4, 6))):
        folder = root / "shakespeare" / "leaf" / part
        folder.mkdir(parents=True)
        users = {"P_ANNA": {k: v[cut] for k, v in samples.items()}}
        if part == "train":
            users["P_LOST"] = samples  # without a test
        (folder / "all.json").write_text(json.dumps({"users": list(users), "user_data": users}))
    write_play(root)
    ds = data.load("shakespeare")
    assert ds.provenance["source"] == "leaf" and ds.domain_names == ("P_ANNA",)
    assert [decode(r) for r in ds.x] == samples["x"] and decode(ds.y) == "".join(samples["y"])
    assert ds.split.tolist() == [0, 0, 0, 0, 1, 1]
    (root / "shakespeare" / "leaf" / "test" / "all.json").write_text('{"users": []}')
    with pytest.raises(FedbookError, match="all.json"):
        data.load("shakespeare")


def test_tinyshakespeare_and_nothing_at_all(root):
    with pytest.raises(FedbookError, match="roles_offline"):
        data.load("shakespeare")
    (root / "shakespeare").mkdir()
    (root / "shakespeare" / "input.txt").write_text(
        "Anna:\n" + "the road is long\n" * 40 + "\nBen:\nno\n"
    )
    ds = data.load("shakespeare", length=20)
    assert ds.domain_names == ("Anna",) and ds.provenance["source"] == "text"
    (root / "shakespeare" / "input.txt").write_text("nobody speaks")
    with pytest.raises(FedbookError, match="no role"):
        data.load("shakespeare")


def test_fetching_goes_to_its_folder(root, monkeypatch):
    asked = []
    monkeypatch.setattr(
        module.store, "download", lambda url, path, **k: asked.append((path, k["sha256"]))
    )
    data.fetch("shakespeare")
    assert asked == [(root / "shakespeare" / "tinyshakespeare_input.txt", module.TINY_SHA256)]


def test_wrong_options_are_refused(root):
    write_play(root)
    for bad in ({"length": 0}, {"test": 1.0}, {"fraction": 0.0}, {"limit": 0}, {"length": 5000}):
        with pytest.raises(FedbookError):
            data.load("shakespeare", **bad)
    with pytest.raises(FedbookError, match="role"):
        data.load("roles_offline", roles=0)


# -- the generator, the network, the index ---------------------------------------------------------
@pytest.fixture(scope="module")
def roles():
    return federate(data.load("roles_offline", roles=4, sentences=12), "by_group", test="domain")


def test_the_generator_is_seeded_and_roles_differ(roles):
    a, b, c = (data.load("roles_offline", roles=3, sentences=12, seed=s) for s in (0, 0, 1))
    assert torch.equal(a.x, b.x) and not (a.x.shape == c.x.shape and torch.equal(a.x, c.x))
    mixes = torch.stack([roles.class_counts(c) / len(c.train) for c in roles.clients])
    assert (mixes[0] - mixes[1]).abs().sum() > 0.1
    assert (
        len(roles) == 4
        and all(len(c.test) for c in roles.clients)
        and roles.type_names[2] == "role 2"
    )
    for c in roles.clients:  # tested on its own words
        assert not set(c.train.tolist()) & set(c.test.tolist())


def test_the_lstm_is_leafs(roles):
    model = models.build("lstm", roles)
    lstm = 4 * 256 * (8 + 256) + 8 * 256 + 4 * 256 * 512 + 8 * 256
    assert sum(p.numel() for p in model.parameters()) == 80 * 8 + lstm + 256 * 80 + 80
    x = roles.inputs(torch.arange(5))
    assert model.embed(x).shape == (5, 256) and torch.equal(model(x), model.head(model.embed(x)))
    changed = x.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 80
    assert not torch.allclose(model(x), model(changed))  # the first character counts


def test_the_lstm_learns_and_refuses_images(roles, images):
    model = models.build("lstm", roles, hidden=24, layers=1)
    run = simulate(
        methods.get("fedavg", lr=1.0, batch_size=32), roles, model, 2, device="cpu", quiet=True
    )
    losses = [sum(r.train_loss.values()) for r in run]
    assert losses[-1] < losses[0]
    with pytest.raises(FedbookError, match="text"):
        models.build("lstm", images)


def test_texts_are_embedded_as_the_paper_words_them(roles):
    assert (
        sequence.text_sentence(torch.from_numpy(encode("to be")), roles.class_names)
        == "The next character of to be"
    )
    assert [sequence.label_sentence(c) for c in ("a", " ", "\n")] == [
        "Character a",
        "Character space",
        "Character new line",
    ]
    said = []

    class Encoder:
        fingerprint = "test"

        def sentences(self, texts):
            said.extend(texts)
            return torch.eye(512)[[len(t) for t in texts]]

    D, L = sequence.embed_text_federation(roles, Encoder())
    assert D.shape == (len(roles.x), 512) and L.shape == (80, 512)
    assert f"The next character of {decode(roles.x[0])}" in said and "Character e" in said
    before = len(said)
    sequence.embed_text_federation(roles, Encoder())
    assert len(said) == before + 80  # only the labels again


def test_an_index_of_texts(roles):
    index = client_index(roles, encoder="offline/hybrid+ngram", epochs=1, ffn=32, limit=24)
    assert len(index) == 4 and index.feature.isfinite().all()
    mix = torch.stack([roles.class_counts(c).float() for c in roles.clients])
    assert index.label.shape == (4, 512) and mix.shape == (4, 80)
