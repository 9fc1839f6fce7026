"""Frozen, pretrained vision transformers: the hybrid that ships with fedbook, any of timm's at any
size, or a local file.

    backbone()                                          # the hybrid, loads without network
    backbone("vit_tiny_patch16_224.augreg_in21k_ft_in1k", size=128)   # positions resampled
    backbone("vit_base_patch16_224.augreg_in21k", checkpoint="model.safetensors")
    backbone("hybrid+bf16")                             # its blocks in bfloat16
    backbone("runs/hybrid/hybrid.safetensors")          # written by `fedbook pretrain hybrid`
    backbone("folder")                   # config.json and model.safetensors, as the hub stores them

A timm network's weights are looked for in `checkpoint`, then as `{name}.safetensors` in the folder
`FEDBOOK_WEIGHTS`, then on the hub. All come back as timm VisionTransformers without classifier, in
eval mode, with no trainable parameter, and with `norm_mean`, `norm_std` and `input_size` set: what
images must look like before they go in (`Prepare` makes them so).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.models import hybrid


def backbone(
    name: str = "hybrid",
    pretrained: bool = True,
    *,
    size: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    checkpoint: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> Any:
    """A frozen timm VisionTransformer for images of `size` pixels (None: its own). A name may say
    it too: "vit_tiny_patch16_224@128".

    "+bf16" after the name keeps blocks and norms in bfloat16: a step in about two thirds of its
    time, where processors have instructions for it. Stem, prompts and head keep `dtype`.
    `pretrained=False` gives the same network at its seeded random initialisation. `checkpoint` is a
    local file (.safetensors, .pth, .bin or timm's .npz); `options` go to timm.
    """
    half = name.endswith("+bf16")
    name, size = _at(name.removesuffix("+bf16"), size)
    own = name == "hybrid" or name.endswith(".safetensors")
    if own and (size not in (None, hybrid.PX) or checkpoint is not None or options):
        raise FedbookError(
            f"the hybrid reads {hybrid.PX} px and takes no other option",
            "images of any size are resized for it; for another network name a ViT of timm's",
        )
    made_on = "meta" if torch.device(device).type == "meta" else "cpu"  # not the default device
    with torch.device(made_on), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if own:
            file = hybrid.WEIGHTS if name == "hybrid" else Path(name)
            model = hybrid.hybrid(file, pretrained)
        else:
            if size is not None:
                options["img_size"] = size
            found = Path(checkpoint) if checkpoint is not None else _in_weights_folder(name)
            model = _from_timm(name, pretrained, found, **options)
    config = model.pretrained_cfg
    model.norm_mean = tuple(config["mean"])
    model.norm_std = tuple(config["std"])
    model.input_size = (3, *model.patch_embed.img_size)
    model = model.to(device=device, dtype=dtype).eval().requires_grad_(False)
    return in_bfloat16(model) if half else model


class Cast(nn.Module):
    """To another precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


def in_bfloat16(model: Any) -> Any:
    """Blocks and norms in bfloat16. Attention is written out: on CPUs the backward pass of torch's
    fused one takes half of a step in this precision.
    """
    model.norm_pre = nn.Sequential(model.norm_pre, Cast(torch.bfloat16))
    for part in (model.blocks, model.norm, model.attn_pool, model.fc_norm):
        for module in part.to(torch.bfloat16).modules() if part is not None else ():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False
    model.blocks_dtype = torch.bfloat16
    return model


def _at(name: str, size: int | None) -> tuple[str, int | None]:
    """The name and the size that "name@size" says."""
    name, at, pixels = name.partition("@")
    if not at:
        return name, size
    if not pixels.isdigit() or size is not None:
        raise FedbookError(
            f"after @ stands the image size in pixels, once; got {name}@{pixels} and size={size}",
            f"for example {name}@128",
        )
    return name, int(pixels)


class Prepare(nn.Module):
    """Images in [0, 1] at the size and with the normalisation a pretrained network wants."""

    def __init__(
        self, size: int, mean: tuple[float, ...] = (0.0,), std: tuple[float, ...] = (1.0,)
    ) -> None:
        super().__init__()
        self.size = size
        self.mean = nn.Parameter(torch.tensor(mean)[:, None, None], requires_grad=False)
        self.std = nn.Parameter(torch.tensor(std)[:, None, None], requires_grad=False)

    @classmethod
    def of(cls, network: Any) -> Prepare:
        """For a network of `backbone`."""
        return cls(network.input_size[-1], network.norm_mean, network.norm_std)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, size=(self.size, self.size), mode="bicubic", antialias=True)
        return (x - self.mean) / self.std


def weights_fingerprint(module: nn.Module) -> str:
    """A short hash of every parameter and buffer, by name and value: the key of what may be cached
    for this module.
    """
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:16]


def _in_weights_folder(name: str) -> Path | None:
    """`FEDBOOK_WEIGHTS/{name}.safetensors`, if it is there."""
    folder = os.environ.get("FEDBOOK_WEIGHTS")
    if not folder or Path(name).is_dir():
        return None
    file = Path(folder).expanduser() / f"{name}.safetensors"
    return file if file.is_file() else None


def _from_timm(name: str, pretrained: bool, checkpoint: Path | None, **options: Any) -> Any:
    import timm
    from timm.models.vision_transformer import VisionTransformer

    local = Path(name).is_dir()
    name = f"local-dir:{name}" if local else name
    if not local and not timm.is_model(name):
        raise FedbookError(
            f"unknown backbone {name!r}",
            'expected "hybrid", a timm ViT, or a local file or folder',
        )
    options = {"num_classes": 0, **options}
    if checkpoint is not None or not pretrained:
        model = timm.create_model(name, pretrained=False, **options)
    else:
        try:
            _ask_hub_once(name)
            model = timm.create_model(name, pretrained=True, **options)
        except (OSError, RuntimeError, LookupError, ValueError) as error:
            raise FedbookError(*_by_hand(name, error)) from error
    if not isinstance(model, VisionTransformer):
        raise FedbookError(
            f"{name!r} is a {type(model).__name__}", "prompts need a timm VisionTransformer"
        )
    if pretrained and checkpoint is not None:
        _read(model, checkpoint)
    return model


def _read(model: Any, path: Path) -> None:
    """Load a timm checkpoint into `model`, without its classifier, and refuse one that leaves
    gaps.
    """
    from timm.models import load_state_dict
    from timm.models.vision_transformer import checkpoint_filter_fn

    if not path.is_file():
        raise FedbookError(
            f"no checkpoint at {path}", "give the path of a .safetensors, .pth, .bin or .npz file"
        )
    if path.suffix == ".npz":
        model.load_pretrained(str(path))
        return
    try:
        state = checkpoint_filter_fn(load_state_dict(str(path)), model)
        state = {
            key: value
            for key, value in state.items()
            if not key.startswith(("head.", "head_dist."))
        }
        result = model.load_state_dict(state, strict=False)
    except (RuntimeError, KeyError, ValueError) as error:
        first = str(error).splitlines()[-1].strip()
        raise FedbookError(
            f"{path} does not fit the network: {first}", "name the network it was made for"
        ) from error
    if result.missing_keys:
        missing = ", ".join(result.missing_keys[:3])
        raise FedbookError(
            f"{path} lacks {len(result.missing_keys)} tensors ({missing}...)",
            "another network's file?",
        )


def _hub_file(name: str) -> tuple[str, str] | None:
    """Repository and file name under which the hub keeps a timm model's weights."""
    from timm.models import get_pretrained_cfg

    config = None if name.startswith("local-dir:") else get_pretrained_cfg(name)
    if config is None or not config.hf_hub_id:
        return None
    return config.hf_hub_id.split("@")[0], config.hf_hub_filename or "model.safetensors"


def _ask_hub_once(name: str) -> None:
    """Fail at once when the weights are neither cached nor reachable: the hub's client would retry
    for a minute.
    """
    import socket
    import urllib.parse
    import urllib.request

    from huggingface_hub import constants, try_to_load_from_cache

    wanted = _hub_file(name)
    if wanted is None or urllib.request.getproxies():
        return
    if any(
        isinstance(try_to_load_from_cache(wanted[0], f), str)
        for f in (wanted[1], "pytorch_model.bin")
    ):
        return
    host = urllib.parse.urlparse(constants.ENDPOINT)
    with socket.create_connection((host.hostname, host.port or 443), timeout=5):
        pass


def _by_hand(name: str, error: BaseException) -> tuple[str, str]:
    """What the hub would have given, and the two ways to put it there without network."""
    wanted = _hub_file(name)
    if wanted is None:
        return f"cannot load weights of {name!r}: {error}", "pretrained=False gives random weights"
    repo, file = wanted
    return (
        f"no network: {name!r} needs the hub file {file} of {repo} (https://huggingface.co/{repo}/resolve/main/{file})",
        f"fetch it elsewhere, then backbone({name!r}, checkpoint='path/to/{file}'), or save it as "
        f"{name}.safetensors in the folder FEDBOOK_WEIGHTS, or "
        "fill the hub's cache: "
        f"$HF_HOME/hub/models--{repo.replace('/', '--')}/refs/main holding a revision such as "
        "`main`, "
        f"and the file at .../snapshots/<that revision>/{file}",
    )
