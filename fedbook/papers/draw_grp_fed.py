"""GRP-FED's Figures 1, 3, 4 and 5 from stored results, and those of our own studies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedbook.papers.draw import Drawn
    from fedbook.papers.spec import Run, Spec

LINES = {
    "t_p": ("personalisation $T_p$", 1),
    "t_r": ("generalisation $T_r$", 2),
    "t_l": ("local test $T_l$", 0),
}


def _local(run: Run) -> dict[str, Any]:
    assert run.result is not None
    return run.result["metrics"]["local"]


def _heading(spec: Spec, run: Run) -> str:
    e = run.experiment
    note = "" if e.scale == "paper" else "; absolute values not comparable with print"
    return f"{spec.id}, {e.scale} scale on {e.dataset['name']}{note}"


def client_map(counts: np.ndarray) -> np.ndarray:
    """t-SNE of the clients by their class shares, of which the square roots are compared (Hellinger
    distance).
    """
    from sklearn.manifold import TSNE

    share = np.sqrt(counts / counts.sum(1, keepdims=True))
    return TSNE(
        init="pca", perplexity=max(2, min(10, len(share) // 4)), random_state=0
    ).fit_transform(share)


def client_imbalance(spec: Spec, runs: list[Run]) -> Drawn:
    """Figure 1: clients by class mix, the class mix of all and of two clients, FedAvg's macro-F1 on
    each client.
    """
    from fedbook import plots

    run = next(r for r in runs if r.result is not None)
    assert run.result is not None
    local, m = _local(run), run.result["metrics"]
    counts = np.array(local["class_counts"], dtype=float)
    fig, (a, b, c) = plots.panels(3)
    xy = client_map(counts)
    a.scatter(xy[:, 0], xy[:, 1], s=14, color=plots.BLUE)
    for name, colour in (("near", plots.GREEN), ("far", plots.RED)):
        i = local[name]["client"]
        a.scatter(xy[i, 0], xy[i, 1], s=60, color=colour, marker="*", label=f"client {i} ({name})")
    a.set(title="clients by class mix", xlabel="t-SNE 1", ylabel="t-SNE 2", xticks=[], yticks=[])
    a.legend()
    shown = {
        "all": counts.sum(0),
        "near": counts[local["near"]["client"]],
        "far": counts[local["far"]["client"]],
    }
    for k, (name, row) in enumerate(shown.items()):
        colour = (plots.BLACK, plots.GREEN, plots.RED)[k]
        b.bar(np.arange(len(row)) + 0.27 * (k - 1), row / row.sum(), 0.27, color=colour, label=name)
    b.set(title="class shares", xlabel="class", ylabel="share of training samples")
    b.legend()
    f1 = np.sort([x for x in m["clients"]["f1"] if x is not None])
    c.plot(range(1, len(f1) + 1), f1, **plots.look("fedavg"))
    c.axhline(local["t_g"], color=plots.RED, linestyle="--", label="global test")
    c.set(title="FedAvg", xlabel="client, from worst to best", ylabel="macro-F1", ylim=(0, 1))
    c.legend()
    fig.suptitle(_heading(spec, run), fontsize=8)
    return fig, (
        f"Three panels: {len(counts)} clients by class mix; class shares of all, the nearest and "
        "the farthest client; "
        f"FedAvg's macro-F1 per client from {f1[0]:.2f} to {f1[-1]:.2f}, global test "
        f"{local['t_g']:.2f}."
    )


def mean_and_max_loss(spec: Spec, runs: list[Run]) -> Drawn:
    """Figure 3: mean and highest training loss of the participants over the rounds."""
    from fedbook import plots

    done = [r for r in runs if r.result is not None]
    fig, axes = plots.panels(2)
    told = []
    for ax, name in zip(axes, ("mean", "max")):
        series: dict[str, list[Any]] = {}
        for r in done:
            assert r.result is not None
            series.setdefault(r.row.method, []).append(
                r.result["metrics"]["curves"][f"global_loss_{name}"]
            )
        assert done[0].result is not None
        plots.curves(
            series,
            done[0].result["metrics"]["rounds"],
            f"{name} training loss of the clients",
            "",
            ax,
        )
        ends = (
            f"{plots.look(m)['label']} {np.mean([s[-1] for s in v]):.2f}" for m, v in series.items()
        )
        told.append(f"{name}: " + ", ".join(ends))
    fig.suptitle(_heading(spec, done[0]), fontsize=8)
    return fig, "Training loss of the clients against round; at the end " + "; ".join(told) + "."


def beta_sweep(spec: Spec, runs: list[Run]) -> Drawn:
    """Figure 4: T_p, T_r and T_l against beta, the mean over seeds with a band from lowest to
    highest.
    """
    from fedbook import plots

    found: dict[float, list[dict[str, Any]]] = {}
    for r in runs:
        if r.result is not None:
            found.setdefault(r.row["beta"], []).append(_local(r))
    x = sorted(found)
    fig, axes = plots.panels(1)
    told = []
    for symbol, (label, k) in LINES.items():
        values = [[run[symbol] for run in found[beta]] for beta in x]
        mean, colour = [float(np.mean(v)) for v in values], plots.type_colours(3)[k]
        axes[0].plot(x, mean, color=colour, marker="o^s"[k], label=label)
        axes[0].fill_between(
            x, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15
        )
        told.append(
            f"{symbol} {mean[0]:.2f} to {mean[-1]:.2f}, highest at beta {x[int(np.argmax(mean))]:g}"
        )
    axes[0].set(xlabel=r"$\beta$, weight of the own loss", ylabel="macro-F1", ylim=(0, 1))
    axes[0].legend()
    fig.suptitle(_heading(spec, next(r for r in runs if r.result)), fontsize=8)
    return fig, "GRP-FED's local tests against beta: " + "; ".join(told) + "."


def two_clients(spec: Spec, runs: list[Run]) -> Drawn:
    """Figure 5: T_g, T_p and T_l of every method on the client nearest to the global class mix, and
    on the farthest.
    """
    from fedbook import plots

    done: dict[str, list[dict[str, Any]]] = {}
    for r in runs:
        if r.result is not None:
            done.setdefault(r.row.method, []).append(_local(r))
    fig, axes = plots.panels(2, width=6.0)
    told = []
    for ax, which in zip(axes, ("near", "far")):
        for k, (symbol, label) in enumerate((("t_g", "$T_g$"), ("t_p", "$T_p$"), ("t_l", "$T_l$"))):
            height = [
                float(np.mean([run[which][symbol] for run in seeds])) for seeds in done.values()
            ]
            ax.bar(
                np.arange(len(height)) + 0.27 * (k - 1),
                height,
                0.27,
                color=plots.type_colours(3)[k],
                label=label,
            )
            told.append(
                f"{which} {symbol}: " + ", ".join(f"{m} {h:.2f}" for m, h in zip(done, height))
            )
        ax.set_xticks(
            range(len(done)), [plots.look(m)["label"] for m in done], rotation=30, ha="right"
        )
        client = next(iter(done.values()))[0][which]["client"]
        ax.set(
            title=f"client {client}, {which} to the global class mix",
            ylabel="macro-F1",
            ylim=(0, 1),
        )
    axes[0].legend()
    fig.suptitle(_heading(spec, next(r for r in runs if r.result)), fontsize=8)
    return fig, "Macro-F1 on two clients. " + "; ".join(told) + "."


def switched(spec: Spec, runs: list[Run]) -> Drawn:
    """Own studies: the four tests with a change off (pale) and on, one panel per change and
    method.
    """
    from fedbook import plots

    found: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = {}
    for r in runs:
        if r.result is not None:
            found.setdefault((r.row["change"], r.row.method), {}).setdefault(
                r.row["on"], []
            ).append(_local(r))
    found = {key: sides for key, sides in found.items() if set(sides) == {0, 1}}
    fig, axes = plots.panels(len(found), width=2.6)
    told = []
    for ax, ((change, method), sides) in zip(axes, found.items()):
        look = plots.look(method)
        mean = {
            on: [float(np.mean([x[s] for x in sides[on]])) for s in ("t_g", "t_p", "t_r", "t_l")]
            for on in (0, 1)
        }
        for on in (0, 1):
            place = np.arange(4) + 0.4 * on - 0.2
            ax.bar(
                place,
                mean[on],
                0.4,
                color=look["color"],
                alpha=0.35 + 0.65 * on,
                label=("off", "on")[on],
            )
        clients = [float(np.mean([x["effective_clients"] for x in sides[on]])) for on in (0, 1)]
        ax.set_xticks(range(4), ["$T_g$", "$T_p$", "$T_r$", "$T_l$"])
        ax.set(title=f"{look['label']}: {change.replace('_', ' ')}", ylabel="macro-F1", ylim=(0, 1))
        ax.legend(
            title=f"effective clients\n{clients[0]:.1f} / {clients[1]:.1f}",
            title_fontsize=6,
            fontsize=6,
        )
        values = ", ".join(
            f"{s} {a:.2f} to {b:.2f}"
            for s, a, b in zip(("T_g", "T_p", "T_r", "T_l"), *mean.values())
        )
        told.append(
            f"{look['label']}, {change}: {values}, effective clients {clients[0]:.1f} to "
            f"{clients[1]:.1f}"
        )
    fig.suptitle(_heading(spec, next(r for r in runs if r.result)), fontsize=8)
    return fig, "What a change does to the four tests. " + "; ".join(told) + "."
