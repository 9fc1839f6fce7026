"""A frozen ViT that learns through extra tokens: one prompted ViT, three ways to make the tokens.

A ViT reads a row of tokens, [cls, patches]; a prompt is one more token, learned, put into that row
before some layer. Attention has no notion of order beyond the position code the patches carry, so
prompts are simply appended.

    PromptedViT   the same prompts for every image: VPT-shallow, VPT-deep, or none (linear probing)
    FedGC         every prompt is shifted by h, which a small network makes of the image  (FedGCR)
    FGPT          shared prompts, plus one group prompt chosen per image at layer u  (FGPT)

Only prompts, GC-Net and head are trained; layers count from 1 as in the papers. The blocks are
timm's own. What no training changes can be handed over: `cls`, e(x) = the CLS feature of
the un-prompted encoder, and `tokens`, what a convolutional stem makes of the image. `precompute`
makes both, once per image; without them the model computes them itself. A gradient with respect to
the image needs the call without `tokens`.

Jia et al., Visual Prompt Tuning, ECCV 2022. Cheng et al., FedGCR, AAAI 2024. Deng et al., FGPT,
arXiv:2310.18285v1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.models import cache
from fedbook.models.backbones import Prepare


class PromptedViT(nn.Module):
    """A frozen timm VisionTransformer with `prompts={layer: how many}` and a linear head.

    replace=False: prompts stay in the row to the end; True: those entering at a layer replace those
    before (VPT-deep). std=None draws prompts as VPT does, U(-v, v) with v^2 = 6 / (3 patch^2 + d)
    (behind a stem its channels take the place of 3 patch^2); a number draws N(0, std^2). prepare
    brings images to the size and normalisation the backbone was trained with; None: they come that
    way. A backbone whose patches are seen by a convolutional stem rounds its tokens to half
    precision, so that kept ones are the same as computed ones.
    """

    backbone: Any

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        prompts: Mapping[int, int] | None = None,
        *,
        replace: bool = False,
        dropout: float = 0.0,
        std: float | None = None,
        prepare: nn.Module | None = None,
    ) -> None:
        from timm.models.vision_transformer import Block, VisionTransformer

        super().__init__()
        if not isinstance(backbone, VisionTransformer):
            raise FedbookError(
                f"prompts need a plain timm VisionTransformer, got {type(backbone).__name__}",
                "try backbone='hybrid'",
            )
        self.backbone = backbone.requires_grad_(False).eval()
        self.depth = len(backbone.blocks)
        self.width = backbone.embed_dim
        self.replace = replace
        self.std = std
        self.stem = hasattr(backbone.patch_embed, "backbone")
        counts = {self._layer(layer): n for layer, n in (prompts or {}).items() if n != 0}
        if any(n < 0 for n in counts.values()):
            raise FedbookError(
                f"a layer gets 0 or more prompts, got {dict(prompts or {})}", "use 0 for none"
            )
        self.prompts = nn.ParameterDict(
            {str(layer): self._new(counts[layer], self.width) for layer in counts}
        )
        self.head = nn.Linear(self.width, num_classes)  # W_C (phi in FedGCR)
        self.dropout = nn.Dropout(dropout)  # on z, so that every term of the objective feels it
        self.prepare = prepare or nn.Identity()
        self._image_tokens = backbone.patch_embed.num_patches + backbone.num_prefix_tokens
        self._read = 1 if backbone.global_pool == "token" else self._image_tokens
        self._plain = type(backbone.blocks[-1]) is Block

    def _layer(self, layer: int) -> int:
        if not 1 <= layer <= self.depth:
            raise FedbookError(
                f"no layer {layer} in a ViT of {self.depth}", f"layers count from 1 to {self.depth}"
            )
        return layer

    def _new(self, *shape: int) -> nn.Parameter:
        if self.std is not None:
            return nn.Parameter(torch.randn(shape) * self.std)
        v = math.sqrt(6 / (self.backbone.patch_embed.proj.weight[0].numel() + self.width))
        return nn.Parameter(torch.empty(shape).uniform_(-v, v))

    def train(self, mode: bool = True) -> PromptedViT:
        super().train(mode)
        self.backbone.eval()
        return self

    # -- the encoder, in pieces --------------------------------------------------------------------
    def tokens(self, x: Tensor) -> Tensor:
        """[cls_0, E_0]: class token and embedded patches, with their position codes."""
        b = self.backbone
        t = b.norm_pre(b.patch_drop(b._pos_embed(b.patch_embed(self.prepare(x)))))
        return t.half().to(t.dtype) if self.stem else t

    def start(self, x: Tensor, tokens: Tensor | None) -> Tensor:
        """The kept tokens if there are any, else those of the images."""
        if tokens is None:
            return self.tokens(x)
        b = self.backbone
        return tokens.to(getattr(b, "blocks_dtype", b.patch_embed.proj.weight.dtype))

    def insert(self, t: Tensor, p: Tensor) -> Tensor:
        """Append prompts p, [n, d] for all images or [B, n, d] for each."""
        return torch.cat([t, p.to(t.dtype).expand(len(t), -1, -1)], 1)

    def run(self, t: Tensor, first: int, last: int) -> Tensor:
        """Layers first..last."""
        for layer in range(first, last + 1):
            t = self.backbone.blocks[layer - 1](t)
        return t

    def finish(self, t: Tensor, first: int = 1) -> Tensor:
        """Layers first..U, then what timm pools (CLS, normalised); prompts are never pooled."""
        b = self.backbone
        n = self._read
        t = self.run(t, first, self.depth - 1)
        last = b.blocks[-1]
        if self._plain:  # residual and MLP of the last layer only for the tokens that are read
            t = t[:, :n] + last.drop_path1(last.ls1(last.attn(last.norm1(t))[:, :n]))
            t = t + last.drop_path2(last.ls2(last.mlp(last.norm2(t))))
        else:
            t = last(t)[:, :n]
        return b.forward_head(b.norm(t), pre_logits=True).to(b.patch_embed.proj.weight.dtype)

    @torch.no_grad()
    def frozen_cls(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        """e(x), h_theta(x) in FGPT: the encoder without prompts and without gradient."""
        return self.finish(self.start(x, tokens))

    # -- the model ---------------------------------------------------------------------------------
    def embed(self, x: Tensor, cls: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        """z(x) [B, d]."""
        if not self.prompts and cls is not None:
            return self.dropout(cls)
        t = self.start(x, tokens)
        at = 1
        for layer in sorted(map(int, self.prompts)):
            t = self.run(t, at, layer - 1)
            t = self.insert(
                t[:, : self._image_tokens] if self.replace else t, self.prompts[str(layer)]
            )
            at = layer
        return self.dropout(self.finish(t, at))

    def forward(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.head(self.embed(x, **extra))

    def precompute(self, federation: Federation) -> dict[str, Tensor]:
        """Per-image tensors no training changes, for `embed(x, **extra)`."""
        kept: dict[str, Tensor] = {}
        frozen = nn.ModuleList([self.prepare, self.backbone])
        if self.stem and self.frozen:
            kept["tokens"] = cache.per_image(
                "tokens", federation, frozen, lambda x, _: self.tokens(x).half()
            )
        if self.needs_cls:
            tokens = kept.get("tokens")
            kept["cls"] = cache.per_image(
                "cls",
                federation,
                frozen,
                lambda x, rows: self.frozen_cls(x, None if tokens is None else tokens[rows]),
            )
        if not self.prompted:  # the head reads e(x) itself
            kept.pop("tokens", None)
        return kept

    @property
    def frozen(self) -> bool:
        return not any(p.requires_grad for p in self.backbone.parameters())

    @property
    def prompted(self) -> bool:
        return bool(self.prompts)

    @property
    def needs_cls(self) -> bool:
        return not self.prompted and self.frozen


class FedGC(PromptedViT):
    """Global prompts p in R^{n x d}, each shifted by the image's own h(x) = GC-Net(e(x)) (FedGCR,
    section 3.1).

    For the losses on h and z: `h = model.h(x, **extra); z = model.embed(x, h=h)`. tiled=True mixes
    the batch in training as the authors' code does: prompt k of image b is shifted by the h of
    image (n b + k) mod B instead of its own.
    """

    needs_cls = True

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        prompts: int = 4,
        *,
        width: int | None = None,
        tiled: bool = False,
        **options: Any,
    ) -> None:
        if prompts < 1:
            raise FedbookError(
                f"FedGC adds h to its prompts and needs at least one, got {prompts}",
                "use prompts=4",
            )
        super().__init__(backbone, num_classes, {1: prompts}, **{"std": 0.02, **options})
        d = self.width
        hidden = width or 4 * self.width
        self.tiled = tiled
        self.gc_net = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, d))

    def h(self, x: Tensor, cls: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        """The type-specific prompt h(x) [B, d] (stage 1, Alg. 1 line 5)."""
        return self.gc_net(self.frozen_cls(x, tokens) if cls is None else cls)

    def embed(
        self,
        x: Tensor,
        cls: Tensor | None = None,
        tokens: Tensor | None = None,
        h: Tensor | None = None,
    ) -> Tensor:
        t = self.start(x, tokens)
        h = self.h(x, cls, t) if h is None else h
        p = self.prompts["1"]
        shift = (
            h.repeat(len(p), 1).view(len(h), *p.shape)
            if self.tiled and self.training
            else h[:, None]
        )
        z = self.finish(self.insert(t, p + shift))  # stage 2, [x | p + h] (Alg. 1 line 6)
        return self.dropout(z)


class Selector(nn.Module):
    """A lighter frozen network whose pooled features take the place of h_theta(x) (FGPT, appendix
    D.3).

    `network` maps prepared images to `num_features` numbers each.
    """

    def __init__(self, network: Any, prepare: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.width = network.num_features
        self.prepare = prepare or nn.Identity()

    def train(self, mode: bool = True) -> Selector:
        return super().train(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.network(self.prepare(x))

    def queries(self, federation: Federation) -> Tensor:
        """Its features of every sample a client holds, computed once."""
        return cache.per_image("selector", federation, self, lambda x, _: self(x))


class FGPT(PromptedViT):
    """Shared prompts P_S at layer 1 and one group prompt p_g at layer u, g chosen per image by
    fixed keys (FGPT).

    layer=None puts u in the middle (6 of 12, 2 of 4). top_k > 1 is FGPT-U: when not training, the
    logits of the top_k nearest groups are averaged; layers below u run once. The head is affine, so
    its mean output is its output at the mean feature, which is what `embed` returns. keys:
    "orthogonal" (QR of a Gaussian, seeded by `key_seed` if given), "random" (that Gaussian), or a
    [G, d] tensor; learn_keys trains them (the selection itself has no gradient). centre is
    subtracted from the query, relu clips it. The query is the un-prompted CLS feature (Eq. 5);
    prompted_query has the shared prompts in place (Fig. 1b), so it changes as they are trained and
    cannot be kept; selector takes it from a lighter network. Group prompts are separate parameters:
    one no image of a client selects keeps grad None, so it does not move.
    """

    prompted = True
    only_choose = ("cls",)  # extras that decide which prompt is used and carry no gradient

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        prompts: int = 5,
        *,
        groups: int = 20,
        layer: int | None = None,
        top_k: int = 1,
        keys: str | Tensor = "orthogonal",
        key_seed: int | None = None,
        learn_keys: bool = False,
        relu: bool = False,
        centre: Tensor | None = None,
        prompted_query: bool = False,
        selector: Selector | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, num_classes, {1: prompts}, **options)
        if prompted_query and selector is not None:
            raise FedbookError(
                "the query comes from the prompted encoder or from a selector", "choose one"
            )
        if not 1 <= top_k <= groups:
            raise FedbookError(
                f"top_k must lie in 1..{groups} groups, got {top_k}", "FGPT uses 1, FGPT-U 5"
            )
        self.layer = middle(self.depth) if layer is None else self._layer(layer)
        self.top_k = top_k
        self.relu = relu
        self.prompted_query = prompted_query
        self.selector = selector
        self.groups = nn.ParameterList(self._new(self.width) for _ in range(groups))
        d = self.width if selector is None else selector.width
        b = make_keys(groups, d, keys, key_seed) if isinstance(keys, str) else keys
        if b.shape != (groups, d):
            raise FedbookError(
                f"keys must be {groups} x {d}, got {tuple(b.shape)}", "one key per group"
            )
        self.keys = nn.Parameter(b.clone(), requires_grad=learn_keys)
        self.centre = nn.Parameter(
            torch.zeros(d) if centre is None else centre, requires_grad=False
        )

    @classmethod
    def of(cls, model: nn.Module) -> FGPT:
        """The model, if it is one with group prompts."""
        if not isinstance(model, cls):
            hint = 'use models.build("fgpt", federation)'
            raise FedbookError(
                f"a model with group prompts was expected, got {type(model).__name__}", hint
            )
        return model

    @property
    def needs_cls(self) -> bool:
        return self.selector is None and not self.prompted_query

    def precompute(self, federation: Federation) -> dict[str, Tensor]:
        kept = super().precompute(federation)
        if self.selector is not None:
            kept["cls"] = self.selector.queries(federation)
        return kept

    @torch.no_grad()
    def query(self, x: Tensor, cls: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        """h_theta(x) [B, d]: `cls` where it was computed before."""
        if cls is not None:
            return cls
        if self.selector is not None:
            return self.selector(x)
        t = self.start(x, tokens)
        if self.prompted_query:
            for shared in self.prompts.values():
                t = self.insert(t, shared)
        return self.finish(t)

    def similarity(self, query: Tensor) -> Tensor:
        """cos(h_theta(x), b_g) [B, G]; the query without gradient, the keys with theirs."""
        query = query.detach() - self.centre
        return (
            F.normalize(F.relu(query) if self.relu else query, dim=1)
            @ F.normalize(self.keys, dim=1).T
        )

    @torch.no_grad()
    def select(self, query: Tensor, k: int = 1) -> Tensor:
        """The k nearest groups [B, k], nearest first, ties to the lower number: Select(x) of Eq. 5
        is column 0.
        """
        return self.similarity(query).argsort(dim=1, descending=True, stable=True)[:, :k]

    def group_prompts(self, g: Tensor) -> Tensor:
        """p_g for group numbers g of any shape, touching only the prompts in use."""
        if g.is_meta:
            return torch.stack(list(self.groups))[g]
        used, where = g.unique(return_inverse=True)
        return torch.stack([self.groups[i] for i in used.tolist()])[where]

    def embed(self, x: Tensor, cls: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        k = 1 if self.training else self.top_k
        t = self.start(x, tokens)
        g = self.select(self.query(x, cls, t), k)  # (5)
        for shared in self.prompts.values():
            t = self.insert(t, shared)  # (2)
        t = self.run(t, 1, self.layer - 1).repeat_interleave(k, 0)
        t = self.insert(t, self.group_prompts(g).view(len(t), 1, -1))  # (3)
        z = self.finish(t, self.layer).view(len(g), k, -1).mean(1)  # (4), Alg. 3
        return self.dropout(z)


def middle(depth: int) -> int:
    """Where a group prompt enters unless told: layer 6 of 12 as FGPT prints, layer 2 of 4."""
    return max(1, depth // 2)


def make_keys(groups: int, d: int, kind: str = "orthogonal", seed: int | None = None) -> Tensor:
    """Keys B [G, d]: mutually orthogonal unit vectors, or the random Gaussian ones they are made
    from.
    """
    if kind not in ("orthogonal", "random"):
        raise FedbookError(
            f"keys are 'orthogonal', 'random', an oracle's ({', '.join(ORACLES)}) or a tensor, got "
            f"{kind!r}",
            "FGPT uses 'orthogonal'",
        )
    rng = None if seed is None else torch.Generator().manual_seed(seed)
    gauss = torch.randn(d, groups, generator=rng, dtype=torch.float64)
    if kind == "random":
        return gauss.T.float().contiguous()
    if groups > d:
        raise FedbookError(
            f"{groups} orthogonal keys do not fit in {d} dimensions", f"use at most {d} groups"
        )
    q, r = torch.linalg.qr(gauss)
    return (q * r.diagonal().sign()).T.float().contiguous()


ORACLES = ("types", "classes")


def oracle_keys(federation: Federation, query: Tensor, kind: str, groups: int) -> Tensor:
    """Keys that no server has: the mean query of each type's training images, or of each of
    `groups` clusters of classes (k-means of the classes' mean queries).
    """
    from sklearn.cluster import KMeans

    rows = torch.cat([c.train for c in federation.clients])
    if kind == "types":
        owner = torch.cat([torch.full_like(c.train, c.type) for c in federation.clients])
    else:
        owner = federation.y[rows]
    z = F.normalize(query[rows], dim=1)
    means = torch.stack([z[owner == v].mean(0) for v in owner.unique()])
    if kind == "classes" and groups < len(means):
        cluster = KMeans(groups, n_init=10, random_state=0).fit_predict(means.cpu().numpy())
        means = torch.stack([means[torch.as_tensor(cluster == g)].mean(0) for g in range(groups)])
    return means


# -- by name; random draws follow torch's seed, which `fedbook.models.build` sets ------------------
def _start(federation: Federation | int, backbone: str | nn.Module) -> dict[str, Any]:
    """What every model begins with: the backbone, the number of classes, and how images become what
    it expects.
    """
    frozen: Any = backbone
    if isinstance(backbone, str):
        from fedbook.models.backbones import backbone as load

        frozen = load(backbone)
    if isinstance(federation, int):
        return {"backbone": frozen, "num_classes": federation}
    embed = frozen.patch_embed
    channels = getattr(embed, "in_chans", embed.proj.in_channels)
    if len(federation.input_shape) != 3 or federation.input_shape[0] != channels:
        raise FedbookError(
            f"the backbone reads images of {channels} channels, the federation holds "
            f"{federation.input_shape}",
            f"load the data with channels={channels}",
        )
    moments = (getattr(frozen, "norm_mean", (0.0,)), getattr(frozen, "norm_std", (1.0,)))
    prepare = _prepare(federation, embed.img_size[0], *moments)
    return {"backbone": frozen, "num_classes": federation.num_classes, "prepare": prepare}


def _prepare(
    federation: Federation | int, size: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> Prepare:
    """Resize images; normalise them too, unless the federation holds floats of its own."""
    floats = not isinstance(federation, int) and federation.x.dtype != torch.uint8
    return Prepare(size) if floats else Prepare(size, mean, std)


def load_selector(federation: Federation | int, name: str = "light") -> Selector:
    """EfficientNet-lite0 ("light", from pip), or a network of timm's from the hub, such as
    "resnet50.a1_in1k".
    """
    network: Any
    if name == "light":
        from fedbook.models.hybrid import PX, lite0

        network = lite0()
        network.reset_classifier(0)
        half = (0.5, 0.5, 0.5)
        return Selector(network, _prepare(federation, PX, half, half))
    import timm

    from fedbook.models.backbones import _ask_hub_once, _by_hand

    if not timm.is_model(name):
        raise FedbookError(
            f"unknown selector {name!r}", 'use "light" or the name of a timm network'
        )
    try:
        _ask_hub_once(name)
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError, LookupError, ValueError) as error:
        raise FedbookError(_by_hand(name, error)[0], 'or use selector="light"') from error
    config = network.pretrained_cfg
    size = config["input_size"][-1]
    return Selector(network, _prepare(federation, size, config["mean"], config["std"]))


def linear_probe(
    federation: Federation | int,
    backbone: str | nn.Module = "hybrid",
    dropout: float = 0.0,
) -> PromptedViT:
    """No prompts: only the head is trained."""
    return PromptedViT(**_start(federation, backbone), dropout=dropout)


def vpt(
    federation: Federation | int,
    backbone: str | nn.Module = "hybrid",
    prompts: int = 5,
    deep: bool = False,
    extra: int = 0,
    layer: int | None = None,
    dropout: float = 0.0,
) -> PromptedViT:
    """VPT for a federation (or a number of classes); `extra` more prompts enter at `layer` (the
    middle unless told).
    """
    start = _start(federation, backbone)
    depth = len(start["backbone"].blocks)
    counts = dict.fromkeys(range(1, depth + 1) if deep else [1], prompts)
    if extra:
        u = middle(depth) if layer is None else layer
        counts[u] = counts.get(u, 0) + extra
    return PromptedViT(**start, prompts=counts, replace=deep, dropout=dropout)


def vpt_deep(
    federation: Federation | int,
    backbone: str | nn.Module = "hybrid",
    prompts: int = 5,
    dropout: float = 0.0,
) -> PromptedViT:
    """VPT-deep: fresh prompts at every layer, in place of those of the layer before."""
    return vpt(federation, backbone, prompts, deep=True, dropout=dropout)


def fedgc(
    federation: Federation | int,
    backbone: str | nn.Module = "hybrid",
    prompts: int = 4,
    width: int | None = None,
    tiled: bool = False,
    dropout: float = 0.0,
) -> FedGC:
    """FedGCR's model; `width` is GC-Net's hidden layer, 4d unless told."""
    start = _start(federation, backbone)
    return FedGC(**start, prompts=prompts, width=width, tiled=tiled, dropout=dropout)


def fgpt(
    federation: Federation | int,
    backbone: str | nn.Module = "hybrid",
    prompts: int = 5,
    groups: int = 20,
    layer: int | None = None,
    top_k: int = 1,
    keys: str | Tensor = "orthogonal",
    key_seed: int | None = None,
    learn_keys: bool = False,
    relu: bool = False,
    centre: bool = False,
    prompted_query: bool = False,
    selector: str | Selector | None = None,
    dropout: float = 0.0,
) -> FGPT:
    """FGPT's model, FGPT-U with top_k=5; centre=True subtracts the mean query of the clients'
    training images, one vector of d numbers (and a count) that each client would send once.
    keys="types" or "classes" are an oracle's. selector: "light", or a timm network's name."""
    start = _start(federation, backbone)
    mean = None
    light = load_selector(federation, selector) if isinstance(selector, str) else selector
    oracle = isinstance(keys, str) and keys in ORACLES
    if centre or oracle:
        if isinstance(federation, int):
            raise FedbookError(
                "centring and an oracle's keys need the clients' images, got a number of classes",
                "pass a federation",
            )
        if light is None:
            e = PromptedViT(**start).precompute(federation)["cls"]
        else:
            e = light.queries(federation)
        if centre:
            mean = e[torch.cat([c.train for c in federation.clients])].mean(0)
        if oracle:
            keys = oracle_keys(federation, e if mean is None else e - mean, str(keys), groups)
    return FGPT(
        **start,
        prompts=prompts,
        groups=groups,
        layer=layer,
        top_k=top_k,
        keys=keys,
        key_seed=key_seed,
        learn_keys=learn_keys,
        relu=relu,
        centre=mean,
        prompted_query=prompted_query,
        selector=light,
        dropout=dropout,
    )


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "linear_probe": linear_probe,
    "vpt": vpt,
    "vpt_deep": vpt_deep,
    "fedgc": fedgc,
    "fgpt": fgpt,
}
