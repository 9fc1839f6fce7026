"""Several clients' models in one: parameters stacked [client, ...], one pass for all of them.

A model is copied once, and in the copy every layer with trained parameters is replaced by a twin
that reads the stacked ones. Frozen layers are shared. Three arrangements of the samples:

    channels   [B, clients * C, ...]: convolutions become grouped ones, residual sums, activations
               and pooling work as they are. For networks trained from scratch.
    rows       all clients' samples one below the other, each with its own client's prompts and
               head. For prompts on a frozen ViT.
    vmap       `torch.func.vmap` over the model as it is. For everything else.

Clients may bring batches of different size. In `channels` and `vmap` shorter ones are filled up
with their first sample, and what comes out of those is dropped; no layer here mixes samples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedbook.models.prompts import FGPT, FedGC, PromptedViT

Params = dict[str, Tensor]


class Layout:
    """How many samples each client brings, and where they are in a filled-up block."""

    def __init__(self, sizes: list[int], device: torch.device) -> None:
        self.sizes = sizes
        self.clients = len(sizes)
        self.width = max(sizes)
        self.equal = min(sizes) == self.width
        self.device = device

    @cached_property
    def counts(self) -> Tensor:
        return torch.tensor(self.sizes, device=self.device)

    @cached_property
    def owner(self) -> Tensor:
        """The client of every row."""
        clients = torch.arange(self.clients, device=self.device)
        return torch.repeat_interleave(clients, self.counts)

    @cached_property
    def place(self) -> Tensor:
        """Where every row is in the block [clients * width]."""
        first = torch.repeat_interleave(self.counts.cumsum(0) - self.counts, self.counts)
        within = torch.arange(len(first), device=self.device) - first
        return self.owner * self.width + within

    def block(self, rows: Tensor) -> Tensor:
        """[rows, ...] -> [clients, width, ...], filled up with each client's first row."""
        shape = (self.clients, self.width, *rows.shape[1:])
        if self.equal:
            return rows.reshape(shape)
        first = self.counts.cumsum(0) - self.counts
        source = torch.repeat_interleave(first, self.width)
        source[self.place] = torch.arange(len(rows), device=rows.device)
        return rows[source].reshape(shape)

    def rows(self, block: Tensor) -> Tensor:
        """[clients, width, ...] -> [rows, ...]."""
        flat = block.reshape(self.clients * self.width, *block.shape[2:])
        return flat if self.equal else flat[self.place]

    def mean(self, values: Tensor) -> Tensor:
        """The mean over each client's rows."""
        if self.equal:
            return values.view(self.clients, self.width).mean(1)
        total = torch.zeros(self.clients, dtype=values.dtype, device=values.device)
        return total.index_add(0, self.owner, values) / self.counts


def stacked(tensors: list[Tensor]) -> Tensor:
    """[clients, ...]; the filters of convolutions in the order grouped convolutions like best."""
    if all(t is tensors[0] for t in tensors):
        all_ = tensors[0].expand(len(tensors), *tensors[0].shape)
    else:
        all_ = torch.stack(tensors)
    if all_.ndim == 5:
        return all_.permute(0, 1, 3, 4, 2).clone(memory_format=CONTIGUOUS).permute(0, 1, 4, 2, 3)
    return all_.clone(memory_format=CONTIGUOUS)


CONTIGUOUS = torch.contiguous_format


def skeleton(model: nn.Module) -> nn.Module:
    """The same modules once more; parameters and buffers are shared, not copied."""
    return copy.deepcopy(model, {id(t): t for t in (*model.parameters(), *model.buffers())})


class Stack:
    """The models of several clients. `params` are leaves; `pass_all` computes z and logits."""

    def __init__(self, model: nn.Module, how: str) -> None:
        self.model = skeleton(model)  # its own, so that several stacks can work side by side
        self.params: dict[str, nn.Parameter] = {}
        self.layout = Layout([1], torch.device("cpu"))
        self.asides: dict[str, Tensor] = {}  # what the pass computed besides z, by row
        self._groups_prefix = ""
        self._twin, self._run = ARRANGEMENTS[how](self)

    def begin(self, starts: list[Params], training: bool = True) -> Stack:
        """Clients with these parameters, copied."""
        if self._twin.training != training:
            self._twin.train(training)
        self.params = {}
        for name in starts[0]:
            self.params[name] = nn.Parameter(stacked([s[name] for s in starts]))
        return self

    def end(self) -> None:
        """Let go of everything that belongs to the clients."""
        self.params = {}
        self.asides = {}

    def first(self, clients: int) -> None:
        """Only the first clients stay; without gradient."""
        self.params = {name: p[:clients] for name, p in self.params.items()}  # type: ignore[misc]

    @property
    def clients(self) -> int:
        return len(next(iter(self.params.values())))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self.params.items())

    def of(self, k: int) -> Params:
        """The parameters of the k-th client, as views with gradients to the stack."""
        return {name: p[k] for name, p in self.params.items()}

    def each(self) -> list[Params]:
        """Every client's parameters, without gradient."""
        split = {name: p.detach().unbind(0) for name, p in self.params.items()}
        return [{name: rows[k] for name, rows in split.items()} for k in range(self.clients)]

    def pass_all(self, x: Tensor, precomputed: Params, layout: Layout) -> tuple[Tensor, Tensor]:
        """z and logits of all rows; the first `layout.sizes[0]` are the first client's, and so
        on.
        """
        self.layout = layout
        self.asides = {}
        return self._run(x, precomputed)

    def touched(self) -> dict[str, Tensor]:
        """For parameters that only some clients used in the last pass: which ones did [clients]."""
        if "groups" not in self.asides:
            return {}
        prefix = self._groups_prefix
        used = self.asides["groups"]
        return {f"{prefix}groups.{g}": used[:, g] for g in range(used.shape[1])}


# -- twins of layers -------------------------------------------------------------------------------
class Twin(nn.Module):
    """A layer that reads its parameters, of all clients, from the stack."""

    def __init__(self, stack: Stack, name: str, layer: nn.Module) -> None:
        super().__init__()
        self.stack = stack
        self.name = name
        object.__setattr__(self, "layer", layer)  # not a part of this module

    def both(self, suffix: str = "") -> tuple[Tensor, Tensor | None]:
        """Weight and bias of all clients."""
        end = f"_{suffix}" if suffix else ""
        params = self.stack.params
        return params[f"{self.name}.weight{end}"], params.get(f"{self.name}.bias{end}")


class ConvTwin(Twin):
    """A convolution of each client's channels: one grouped convolution."""

    layer: nn.Conv2d

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.both()
        c = self.layer
        convolve: Callable[..., Tensor] = F.conv2d if weight.ndim == 5 else F.conv1d
        return convolve(
            x,
            weight.flatten(0, 1),
            None if bias is None else bias.flatten(),
            c.stride,
            c.padding,
            c.dilation,
            len(weight) * c.groups,
        )


class GroupNormTwin(Twin):
    layer: nn.GroupNorm

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.both()
        assert bias is not None
        groups = len(weight) * self.layer.num_groups
        return F.group_norm(x, groups, weight.flatten(), bias.flatten(), self.layer.eps)


def products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [clients, n, i] through each client's linear layer."""
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias[:, None], x, weight.mT)


class LinearTwin(Twin):
    """A linear layer on the last axis [..., clients * features]."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.both()
        clients = len(weight)
        y = x.reshape(-1, clients, weight.shape[2]).transpose(0, 1)
        y = products(y, weight, bias).transpose(0, 1)
        return y.reshape(*x.shape[:-1], clients * weight.shape[1])


class RowLinearTwin(Twin):
    """A linear layer on rows [n, features], each with its own client's parameters."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.both()
        layout = self.stack.layout
        return layout.rows(products(layout.block(x), weight, bias))


class EmbeddingTwin(Twin):
    """Codes [..., clients] to [..., clients * features]."""

    def forward(self, x: Tensor) -> Tensor:
        weight, _ = self.both()
        first = torch.arange(len(weight), device=x.device) * weight.shape[1]
        return F.embedding(x + first, weight.flatten(0, 1)).flatten(-2)


class LSTMTwin(Twin):
    """Stacked LSTMs, batch first: [B, T, clients * i] -> [B, T, clients * hidden]."""

    layer: nn.LSTM

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        hidden = self.layer.hidden_size
        batch, time, _ = x.shape
        clients = self.stack.clients
        y = x.view(batch, time, clients, -1).permute(2, 1, 0, 3)  # [clients, T, B, i]
        for i in range(self.layer.num_layers):
            weight_ih, bias_ih = self.both(f"ih_l{i}")
            weight_hh, bias_hh = self.both(f"hh_l{i}")
            bias = None if bias_ih is None or bias_hh is None else bias_ih + bias_hh
            given = products(y.reshape(clients, time * batch, -1), weight_ih, bias)
            steps = given.view(clients, time, batch, -1).unbind(1)
            h = c = x.new_zeros(clients, batch, hidden)
            outputs = []
            for gates in steps:
                gates = torch.baddbmm(gates, h, weight_hh.mT)
                i_, f_, g_, o_ = gates.chunk(4, 2)
                c = f_.sigmoid() * c + i_.sigmoid() * g_.tanh()
                h = o_.sigmoid() * c.tanh()
                outputs.append(h)
            y = torch.stack(outputs, 1)
        return y.permute(2, 1, 0, 3).reshape(batch, time, clients * hidden), None


CHANNEL_TWINS: dict[type[nn.Module], type[Twin]] = {
    nn.Conv1d: ConvTwin,
    nn.Conv2d: ConvTwin,
    nn.Linear: LinearTwin,
    nn.GroupNorm: GroupNormTwin,
    nn.Embedding: EmbeddingTwin,
    nn.LSTM: LSTMTwin,
}
ROW_TWINS: dict[type[nn.Module], type[Twin]] = {nn.Linear: RowLinearTwin}


class Unsupported(Exception):
    """This arrangement cannot run the model."""


def twin(stack: Stack, twins: dict[type[nn.Module], type[Twin]]) -> Any:
    """A copy of the model whose trained layers read the stack; parameters are never copied."""
    if any(p.requires_grad for p in stack.model.parameters(recurse=False)):
        raise Unsupported("trained parameters outside of any layer")
    model = skeleton(stack.model)

    def visit(module: nn.Module, prefix: str) -> None:
        for name, child in list(module.named_children()):
            path = f"{prefix}{name}"
            own = [p.requires_grad for p in child.parameters(recurse=False)]
            if isinstance(child, (nn.ParameterDict, nn.ParameterList)):
                continue  # prompts: `patch` takes care of them
            if not any(own):
                visit(child, f"{path}.")
            elif type(child) in twins and all(own):
                setattr(module, name, twins[type(child)](stack, path, child))
            else:
                raise Unsupported(f"a trained {type(child).__name__}")

    visit(model, "")
    return model


# -- arrangements ----------------------------------------------------------------------------------
Run = Callable[[Tensor, Params], tuple[Tensor, Tensor]]
Arranged = tuple[nn.Module, Run]  # the module that computes, and how samples go through it


def channels(stack: Stack) -> Arranged:
    if any(not p.requires_grad for p in stack.model.parameters()):
        raise Unsupported("frozen layers")
    if any(isinstance(m, (nn.LayerNorm, nn.Softmax)) for m in stack.model.modules()):
        raise Unsupported("layers across channels")
    model = twin(stack, CHANNEL_TWINS)
    prepare = getattr(model, "prepare", nn.Identity())  # runs before clients are joined
    model.prepare = nn.Identity()

    def run(x: Tensor, precomputed: Params) -> tuple[Tensor, Tensor]:
        layout = stack.layout
        block = layout.block(prepare(x))  # [clients, B, C, ...]
        if x.is_floating_point():
            together = block.transpose(0, 1).flatten(1, 2)
            if together.ndim == 4:
                together = together.contiguous(memory_format=torch.channels_last)
        else:
            together = block.permute(*range(1, block.ndim), 0)  # codes [B, T, clients]
        z = model.embed(together)
        logits = model.head(z)
        return tuple(
            layout.rows(out.reshape(len(out), layout.clients, -1).transpose(0, 1))
            for out in (z, logits)
        )  # type: ignore[return-value]

    return model, run


def rows(stack: Stack) -> Arranged:
    model = twin(stack, ROW_TWINS)
    for prefix, module in list(model.named_modules()):
        if isinstance(module, PromptedViT):
            patch(stack, module, f"{prefix}." if prefix else "")

    def run(x: Tensor, precomputed: Params) -> tuple[Tensor, Tensor]:
        z = model.embed(x, **precomputed)
        return z, model.head(z)

    return model, run


class _Prompts:
    """Prompts by layer, each gathered for every row; stands where the ParameterDict was."""

    def __init__(self, stack: Stack, prefix: str, layers: list[str]) -> None:
        self.stack = stack
        self.prefix = prefix
        self.layers = layers

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __getitem__(self, layer: str) -> Tensor:
        return self.stack.params[f"{self.prefix}prompts.{layer}"][self.stack.layout.owner]

    def values(self) -> list[Tensor]:
        return [self[layer] for layer in self.layers]


def patch(stack: Stack, model: Any, prefix: str) -> None:
    """Make a copied PromptedViT read every row's own prompts."""
    layers = list(model.prompts.keys())
    del model.prompts
    model.prompts = _Prompts(stack, prefix, layers)
    if isinstance(model, FedGC):
        plain = model.h

        def h(*args: Any, **kwargs: Any) -> Tensor:
            found = plain(*args, **kwargs)
            stack.asides["h"] = found
            return found

        object.__setattr__(model, "h", h)
    if isinstance(model, FGPT):
        if model.keys.requires_grad:
            raise Unsupported("learned keys")
        count = len(model.groups)
        stack._groups_prefix = prefix

        def group_prompts(g: Tensor) -> Tensor:
            each: list[Tensor] = [stack.params[f"{prefix}groups.{i}"] for i in range(count)]
            owner = stack.layout.owner
            used = torch.zeros(stack.clients, count, dtype=torch.bool, device=g.device)
            used[owner[:, None], g] = True
            stack.asides["groups"] = used
            return torch.stack(each, 1)[owner[:, None], g]

        object.__setattr__(model, "group_prompts", group_prompts)


class _Both(nn.Module):
    """z and logits as one forward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, x: Tensor, precomputed: Params) -> tuple[Tensor, Tensor]:
        z = self.model.embed(x, **precomputed)
        return z, self.model.head(z)


def mapped(stack: Stack) -> Arranged:
    both = _Both(stack.model)

    def one(params: Params, x: Tensor, precomputed: Params) -> tuple[Tensor, Tensor]:
        return functional_call(both, params, (x, precomputed))

    def run(x: Tensor, precomputed: Params) -> tuple[Tensor, Tensor]:
        layout = stack.layout
        params: Params = {f"model.{name}": p for name, p in stack.params.items()}
        blocks = {name: layout.block(t) for name, t in precomputed.items()}
        z, logits = vmap(one)(params, layout.block(x), blocks)
        return layout.rows(z), layout.rows(logits)

    return both, run


ARRANGEMENTS: dict[str, Callable[[Stack], Arranged]] = {
    "channels": channels,
    "rows": rows,
    "vmap": mapped,
}


def arrangement(model: nn.Module, x: Tensor, precomputed: Params) -> str:
    """The fastest arrangement that computes what the model computes, tried on a few samples."""
    prompted = any(isinstance(m, PromptedViT) for m in model.modules())
    start: Params = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    other = {n: p * 1.1 + 0.01 for n, p in start.items()}
    layout = Layout([len(x) - 1, 1], x.device)
    wanted = []
    with torch.no_grad():
        for params, part in ((start, slice(0, -1)), (other, slice(-1, None))):
            named = {f"model.{n}": p for n, p in params.items()}
            rest = {n: t[part] for n, t in precomputed.items()}
            wanted.append(functional_call(_Both(model), named, (x[part], rest)))
    z, logits = (torch.cat(parts) for parts in zip(*wanted))
    for how in ("rows",) if prompted else ("channels", "vmap"):
        try:
            with torch.no_grad():
                stack = Stack(model, how).begin([start, other], model.training)
                found = stack.pass_all(x, precomputed, layout)
        except (Unsupported, RuntimeError, TypeError):
            continue
        close = [_close(a, b) for a, b in zip(found, (z, logits))]
        if x.is_meta or all(close):
            return how
    raise Unsupported(f"{type(model).__name__} has layers that cannot be stacked")


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    return a.is_meta or torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))


# -- one client's view -----------------------------------------------------------------------------
class ClientModel:
    """The resident model as one client of a stack sees it: the same layers and methods, its own
    parameters. For terms of an objective that ask the model for more than z and logits.
    """

    def __init__(self, module: nn.Module, params: Params, asides: Params, prefix: str = "") -> None:
        self._module = module
        self._params = params
        self._asides = asides
        self._prefix = prefix

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance asks for the layer's own class
        return type(self._module)

    def _part(self, module: nn.Module, name: str) -> ClientModel:
        return ClientModel(module, self._params, self._asides, f"{self._prefix}{name}.")

    def __getattr__(self, name: str) -> Any:
        key = f"{self._prefix}{name}"
        if key in self._params:
            return self._params[key]
        found = getattr(self._module, name)
        if isinstance(found, nn.Module):
            return self._part(found, name)
        plain = getattr(type(self._module), name, None)
        if callable(plain) and hasattr(found, "__self__"):
            return plain.__get__(self)  # a method, run on this view
        return found

    def __getitem__(self, key: str | int) -> Any:
        name = f"{self._prefix}{key}"
        if name in self._params:
            return self._params[name]
        return self._part(self._module[key], str(key))  # type: ignore[index]

    def __len__(self) -> int:
        return len(self._module)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._module)  # type: ignore[call-overload]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = {}
        for name, p in self._params.items():
            if name.startswith(self._prefix):
                own[name[len(self._prefix) :]] = p
        return functional_call(self._module, own, args, kwargs)

    def h(self, *args: Any, **kwargs: Any) -> Tensor:
        if "h" in self._asides:  # the pass has computed it for this batch
            return self._asides["h"]
        return type(self._module).h(self, *args, **kwargs)  # type: ignore[attr-defined]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        for name, p in self._params.items():
            if name.startswith(self._prefix):
                yield name[len(self._prefix) :], p

    def parameters(self, *args: Any, **kwargs: Any) -> Iterator[Tensor]:
        return (p for _, p in self.named_parameters())

    def modules(self) -> Iterator[Any]:
        for name, module in self._module.named_modules():
            yield self._part(module, name) if name else self


def obstacle(model: nn.Module) -> str | None:
    """What in a model keeps the clients of a round from sharing one pass, or None."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return "BatchNorm mixes the samples of a batch"
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return "dropout draws from one stream per client"
        if isinstance(module, nn.LSTM) and (module.dropout or module.bidirectional):
            return "its LSTM has dropout or two directions"
        if isinstance(module, nn.LSTM) and not module.batch_first:
            return "its LSTM does not take the batch first"
        if isinstance(module, FedGC) and module.tiled:
            return "tiled prompts mix the samples of a batch"
        if isinstance(module, FGPT) and module.keys.requires_grad:
            return "learned keys select by client"
    return None
