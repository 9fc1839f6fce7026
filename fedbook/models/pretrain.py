"""How the hybrid's trunk got its weights: `fedbook pretrain hybrid`. `fedbook pretrain probe` tells
what they are worth.

The trunk reads tokens of a frozen EfficientNet-lite0 (fedbook.models.hybrid) and learns on Tiny
ImageNet from two sources: the labels, and lite0 itself. Of lite0 the class token learns three
things, each reduced to its leading principal components: the pooled feature (what is there), the
whole 4x4 map (where), and the whole 8x8 map (where the strokes are, without which digits on a busy
background look alike). Tokens are computed once, of every image as it is and of a few recoloured,
cropped, inverted or outlined views; training then touches no image any more.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError, whole
from fedbook.files import write_atomically
from fedbook.models import hybrid
from fedbook.models.probe import NETWORKS, domain_table, probe_table, step_table

CELLS = hybrid.GRID**2
LAST = 320  # channels of lite0's last map; the other channels of a token are the middle map's
CHUNK = 1600  # images whose views are drawn from one seeded stream


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The trunk, what it sees, and what it is asked for."""

    embed_dim: int = 192
    depth: int = 4
    num_heads: int = 3
    mlp_ratio: float = 3.0
    views: int = 3
    epochs: int = 16
    batch_size: int = 128
    lr: float = 1e-3
    decay: float = 0.05
    drop: float = 0.2  # share of the tokens left out of a step
    labels: float = 1.0  # weights of the three losses
    pooled: float = 10.0
    maps: float = 25.0
    seed: int = 0

    @property
    def arch(self) -> dict[str, Any]:
        names = ("embed_dim", "depth", "num_heads", "mlp_ratio")
        return {name: getattr(self, name) for name in names}


Images = tuple[Tensor, Tensor, Tensor]


def tiny_imagenet() -> Images:
    """x, y and split (0 train, 1 test) of Tiny ImageNet."""
    from fedbook import data

    dataset = data.load("tiny_imagenet", size=48)
    return dataset.x, dataset.y, dataset.split


# ---------------------------------------------------------------- views, as tokens


def augment(x: Tensor, rng: torch.Generator) -> Tensor:
    """Views of uint8 images in [0, 1]: cropped, mirrored, turned, at another resolution, with other
    colours, grey, inverted, or as outlines on white.
    """

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(len(x), *(shape or (1, 1, 1)), generator=rng) * (high - low) + low

    def sometimes(p: float) -> Tensor:
        return (uniform(0, 1) < p).float()

    side = (28, 32, 32, 40, 48, 64)[int(torch.randint(6, (), generator=rng))]
    stretch = uniform(-0.15, 0.15, 1).exp()
    size = uniform(0.35, 1.0, 1).sqrt() * torch.cat([stretch, 1 / stretch], 1)
    theta = torch.zeros(len(x), 2, 3)
    theta[:, :, 2] = uniform(-1, 1, 2) * ((1 - size).clamp(min=0) + 0.05)
    angle = uniform(-0.25, 0.25, 1)[:, 0] * sometimes(0.3)[:, 0, 0, 0]
    mirror = 1 - 2 * sometimes(0.5)[:, 0, 0, 0]
    theta[:, 0, 0] = size[:, 0] * angle.cos() * mirror
    theta[:, 0, 1] = -size[:, 0] * angle.sin()
    theta[:, 1, 0] = size[:, 1] * angle.sin() * mirror
    theta[:, 1, 1] = size[:, 1] * angle.cos()
    grid = F.affine_grid(theta, [len(x), 3, 64, 64], align_corners=False)
    large = F.interpolate(x.float() / 255, size=(96, 96), mode="bicubic", antialias=True)
    v = F.grid_sample(large.clamp(0, 1), grid, padding_mode="reflection", align_corners=False)
    v = F.interpolate(v, size=(side, side), mode="bilinear", antialias=True)

    changed = sometimes(0.6)  # the others keep their colours
    grey = v.mean(1, keepdim=True)
    level = v.mean((1, 2, 3), keepdim=True)
    v = grey + (v - grey) * (1 + changed * uniform(-0.7, 0.7)) * (1 - sometimes(0.15))
    v = v * (1 + changed * uniform(-0.2, 0.2, 3, 1, 1))
    v = level + (v - level) * (1 + changed * uniform(-0.5, 0.5)) + changed * uniform(-0.2, 0.2)
    v = v.clamp(0, 1)
    drawing = 1 - (_edges(v) * uniform(1.5, 3)).clamp(0, 1)
    v = v + sometimes(0.1) * (drawing - v)
    return (v - sometimes(0.12)).abs().clamp(0, 1)


def _edges(v: Tensor) -> Tensor:
    """How steep the brightness is [B, 1, H, W], relative to the steepest place of each image."""
    grey = F.pad(v.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    across = grey[:, :, 1:-1, 2:] - grey[:, :, 1:-1, :-2]
    down = grey[:, :, 2:, 1:-1] - grey[:, :, :-2, 1:-1]
    steep = (across**2 + down**2).sqrt()
    return steep / steep.amax((1, 2, 3), keepdim=True).clamp(min=0.05)


@torch.inference_mode()
def view(x: Tensor, number: int, file: Path, seed: int = 0, quiet: bool = False) -> np.ndarray:
    """Tokens [N, 16, 768] of view `number` (0: the images as they are) in half precision, computed
    chunk by chunk into `file` and mapped from there; goes on where it was stopped.
    """
    from tqdm.auto import tqdm

    from fedbook.models.backbones import Prepare

    shape = (len(x), CELLS, hybrid.Stem.num_features)
    progress = file.with_suffix(".json")
    done = json.loads(progress.read_text()) if progress.is_file() and file.is_file() else 0
    if done < len(x):
        tokens = np.lib.format.open_memmap(file, "r+" if done else "w+", np.float16, shape)
        stem = hybrid.Stem().eval()
        prepare = Prepare(hybrid.PX, (0.5,) * 3, (0.5,) * 3)
        bar = tqdm(total=len(x), initial=done, desc=f"view {number}", disable=quiet)
        for start in range(done, len(x), CHUNK):
            rng = torch.Generator().manual_seed((seed * 100 + number) * 1_000_003 + start)
            for part in torch.arange(start, min(start + CHUNK, len(x))).split(16):
                images = augment(x[part], rng) if number else x[part].float() / 255
                found = stem(prepare(images)).flatten(2).transpose(1, 2)
                tokens[part.numpy()] = found.half().numpy()
            tokens.flush()
            with write_atomically(progress) as new:
                new.write_text(json.dumps(start + CHUNK))
            bar.update(min(CHUNK, len(x) - start))
        bar.close()
    kept = np.load(file, mmap_mode="r")
    if kept.shape != shape:
        raise FedbookError(f"{file} holds tokens of other images", "take another folder")
    return kept


# ---------------------------------------------------------------- what the class token learns


def principal(x: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """Mean of x [N, D] and a matrix [D, dims] onto its leading principal components: each divided
    by the root of its deviation, all scaled to mean variance 1.
    """
    mean = x.mean(0)
    _, _, basis = torch.svd_lowrank(x - mean, q=dims + 32, niter=3)
    basis = basis[:, :dims]
    basis = basis / ((x - mean) @ basis).std(0).sqrt()
    return mean, basis / ((x - mean) @ basis).var(0).mean().sqrt()


class Targets:
    """Three things lite0 knows of an image, from its tokens standardised by `mean` and `std`."""

    def __init__(self, tokens: Tensor) -> None:
        network = hybrid.lite0()
        self.head = nn.Sequential(network.conv_head, network.bn2)
        self.mean = tokens.mean((0, 1))
        self.std = tokens.std((0, 1)).clamp(min=1e-3)
        z = self.standardised(tokens)
        self.components = {
            "pooled": principal(torch.cat([self.pool(t) for t in tokens.split(500)]), 128),
            "last": principal(z[..., :LAST].flatten(1), 96),
            "middle": principal(z[..., LAST:].flatten(1), 128),
        }

    def standardised(self, tokens: Tensor) -> Tensor:
        return (tokens - self.mean) / self.std

    def pool(self, tokens: Tensor) -> Tensor:
        """lite0's pooled feature [B, 1280]."""
        last = tokens[..., :LAST].transpose(1, 2).unflatten(2, (hybrid.GRID, hybrid.GRID))
        return self.head(last).mean((2, 3))

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(pooled [B, 128], both maps [B, 224])."""
        z = self.standardised(tokens)
        whole = {
            "pooled": self.pool(tokens),
            "last": z[..., :LAST].flatten(1),
            "middle": z[..., LAST:].flatten(1),
        }
        found = {k: (whole[k] - mean) @ basis for k, (mean, basis) in self.components.items()}
        return found["pooled"], torch.cat([found["last"], found["middle"]], 1)


class Student(nn.Module):
    """The trunk with what only pretraining needs: a classifier and two linear maps to the
    targets.
    """

    def __init__(self, recipe: Recipe, classes: int) -> None:
        super().__init__()
        self.trunk = hybrid.build(pretrained=False, patch_drop_rate=recipe.drop, **recipe.arch)
        self.trunk.patch_embed.backbone = nn.Identity()  # tokens come ready-made
        width = recipe.embed_dim
        self.classify = nn.Linear(width, classes)
        self.pooled = nn.Linear(width, 128)
        self.maps = nn.Linear(width, 224)
        for name, p in self.named_parameters():
            if p.ndim in (2, 4):
                nn.init.xavier_uniform_(p)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, standardised: Tensor) -> Tensor:
        """The class token of tokens [B, 16, 768]."""
        return self.trunk(standardised.transpose(1, 2).unflatten(2, (hybrid.GRID, hybrid.GRID)))


# ---------------------------------------------------------------- training


def losses(student: Student, tokens: Tensor, y: Tensor, targets: Targets) -> dict[str, Tensor]:
    pooled, maps = targets(tokens)
    z = student(targets.standardised(tokens))
    return {
        "labels": F.cross_entropy(student.classify(z), y, label_smoothing=0.1),
        "pooled": F.mse_loss(student.pooled(z), pooled),
        "maps": F.mse_loss(student.maps(z), maps),
    }


def pretrain_hybrid(
    out: str | Path,
    recipe: Recipe | None = None,
    images: Images | None = None,
    threads: int | None = None,
    quiet: bool = False,
) -> Path:
    """Train in folder `out`, going on from its checkpoint if there is one; returns the finished
    safetensors file.

    Every epoch draws from its own seeded stream and ends with an atomic checkpoint and a line in
    log.jsonl, so a killed run that is started again ends with the same weights as one that never
    stopped. Half of the test images are looked at after every epoch.
    """
    recipe = recipe or Recipe()
    if threads:
        torch.set_num_threads(threads)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    x, y, split = images if images is not None else tiny_imagenet()
    held = (split == 1).nonzero()[::2, 0]
    files = [out / f"view{v}.npy" for v in range(recipe.views)]
    views = [
        view(x[split == 0], v, file=file, seed=recipe.seed, quiet=quiet)
        for v, file in enumerate(files)
    ]
    checks = torch.from_numpy(np.array(view(x[held], 0, out / "held.npy", quiet=quiet)))
    y_train = y[split == 0]
    y_held = y[held]

    torch.manual_seed(recipe.seed)
    few = torch.randperm(len(y_train))[:6000].sort().values.numpy()
    sample = [torch.from_numpy(v[few[i :: len(views)]]) for i, v in enumerate(views)]
    targets = Targets(torch.cat(sample).float())
    student = Student(recipe, int(y.max()) + 1)
    optimizer = _adamw(student, recipe)
    batches = max(1, len(y_train) // recipe.batch_size)
    config = dataclasses.asdict(recipe)
    checkpoint = out / "checkpoint.pt"
    first = 0
    seconds = 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        if saved["config"] != config:
            raise FedbookError(f"{out} holds another run: {saved['config']}", "another folder?")
        student.load_state_dict(saved["student"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
        seconds = saved["seconds"]

    for epoch in range(first, recipe.epochs):
        start = time.perf_counter()
        total = dict.fromkeys(("labels", "pooled", "maps"), 0.0)
        rng = torch.Generator().manual_seed(recipe.seed * 100_003 + epoch)
        torch.manual_seed(recipe.seed * 100_003 + epoch)  # timm draws the dropped tokens from it
        student.train()
        order = torch.randperm(len(y_train), generator=rng)
        for i in range(batches):
            done = (epoch * batches + i) / (recipe.epochs * batches)
            warm = min(1.0, (epoch * batches + i + 1) / 100)
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * warm * min(1.0, 2 * (1 - done))
            rows = order[i * recipe.batch_size : (i + 1) * recipe.batch_size]
            tokens = _draw(views, rows, rng)
            found = losses(student, tokens, y_train[rows], targets)
            optimizer.zero_grad()
            sum(getattr(recipe, k) * found[k] for k in found).backward()  # type: ignore[union-attr]
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            for k in total:
                total[k] += found[k].item() / batches
        seconds += time.perf_counter() - start
        line = {
            "epoch": epoch + 1,
            **{k: round(v, 4) for k, v in total.items()},
            "held_out": round(_accuracy(student, checks, y_held, targets), 4),
            "seconds": round(seconds, 1),
        }
        state: dict[str, Any] = {"student": student.state_dict()}
        state["optimizer"] = optimizer.state_dict()
        state |= {"epoch": epoch + 1, "seconds": seconds, "config": config}
        buffer = io.BytesIO()
        torch.save(state, buffer)
        with write_atomically(checkpoint) as new:
            new.write_bytes(buffer.getvalue())
        with open(out / "log.jsonl", "a") as log:
            log.write(json.dumps(line) + "\n")
        if not quiet:
            print(json.dumps(line), flush=True)
    return save(student, targets, out / "hybrid.safetensors", recipe)


def _adamw(student: Student, recipe: Recipe) -> torch.optim.Optimizer:
    """Only matrices decay."""
    matrices = [p for p in student.parameters() if p.ndim >= 2 and len(p) > 1]
    inside = {id(p) for p in matrices}
    rest = [p for p in student.parameters() if id(p) not in inside]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, recipe.lr, weight_decay=recipe.decay)


def _draw(views: list[np.ndarray], rows: Tensor, rng: torch.Generator) -> Tensor:
    """The tokens of some images, each from a view drawn at random."""
    which = torch.randint(len(views), (len(rows),), generator=rng)
    tokens = torch.empty(len(rows), *views[0].shape[1:])
    for v, kept in enumerate(views):
        mine = which == v
        tokens[mine] = torch.from_numpy(kept[rows[mine].numpy()]).float()
    return tokens


@torch.inference_mode()
def _accuracy(student: Student, tokens: Tensor, y: Tensor, targets: Targets) -> float:
    student.eval()
    parts = [student(targets.standardised(t.float())) for t in tokens.split(500)]
    return float((student.classify(torch.cat(parts)).argmax(1) == y).float().mean())


@torch.no_grad()
def save(student: Student, targets: Targets, path: Path, recipe: Recipe) -> Path:
    """The trunk alone, in half precision, with its shape in the file's header; the tokens'
    standardisation becomes part of its first matrix.
    """
    from safetensors.torch import save_file

    state = {k: v.clone() for k, v in student.trunk.state_dict().items()}
    weight = state["patch_embed.proj.weight"] / targets.std[None, :, None, None]
    state["patch_embed.proj.bias"] -= weight[:, :, 0, 0] @ targets.mean
    state["patch_embed.proj.weight"] = weight
    header = {
        "arch": json.dumps(recipe.arch),
        "recipe": json.dumps(dataclasses.asdict(recipe)),
    }
    halves = {k: v.half().contiguous() for k, v in state.items()}
    with write_atomically(path) as part:
        save_file(halves, part, metadata=header)
    return path


# ---------------------------------------------------------------- command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`fedbook pretrain hybrid`, `fedbook pretrain probe` and `fedbook pretrain clip`."""
    from fedbook.models import clip_fit

    commands = parser.add_subparsers(dest="what", required=True)
    train = commands.add_parser("hybrid", help="train the hybrid's trunk (resumes if stopped)")
    train.add_argument("--out", default="runs/hybrid", help="folder of tokens, log and weights")
    for field in dataclasses.fields(Recipe):
        train.add_argument(
            f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default
        )
    train.add_argument("--threads", type=int)
    train.add_argument("--quiet", action="store_true")
    tables = {
        "probe": "linear probes: what frozen features know of classes, and their cost",
        "domains": "what frozen features know of domains",
    }
    for name, text in tables.items():
        table = commands.add_parser(name, help=text)
        table.add_argument(
            "--networks", nargs="+", default=NETWORKS, help="pixels, lite0, a backbone, name@pixels"
        )
        table.add_argument("--sets", nargs="+", help="unless told, those that are here")
        if name == "probe":
            table.add_argument("--on", choices=("test", "validation"), default="test")
            more = "train on and test with at most so many (2000): a large network is slow"
            table.add_argument("--images", type=int, default=2000, help=more)
    help_clip = "fit the offline image-text pair, or print what it is worth"
    clip_fit.add_arguments(commands.add_parser("clip", help=help_clip))


def main(args: argparse.Namespace) -> None:
    if args.what == "hybrid":
        fields = {f.name: getattr(args, f.name) for f in dataclasses.fields(Recipe)}
        print(pretrain_hybrid(args.out, Recipe(**fields), threads=args.threads, quiet=args.quiet))
    elif args.what == "clip":
        from fedbook.models import clip_fit

        clip_fit.main(args)
    elif args.what == "domains":
        print(domain_table(args.networks, args.sets).round(3).to_string())
    else:
        most = args.images
        whole("--images", most, least=40)
        found = probe_table(args.networks, args.sets, args.on, train=most, test=most)
        print(found.round(3).to_string())
        print("\nmilliseconds per image of a prompted step")
        print(step_table(args.networks).round(2).to_string())
