"""GRP-FED's Figures 1, 3, 4 and 5, Table 1 as a picture, and the pictures of our own studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbook.papers.draw import Drawn, Methods, by_method, heading, panels
from fedbook.papers.spec import Run, Spec, finished

TESTS = {"t_g": "$T_g$", "t_p": "$T_p$", "t_r": "$T_r$", "t_l": "$T_l$"}


def local(run: Run) -> dict[str, Any]:
    """The four tests of a run."""
    return run.metrics["local"]


def mean_of(runs: Sequence[Run], *path: str) -> float:
    """The mean over runs of one of the tests: mean_of(runs, "far", "t_p")."""
    values = []
    for run in runs:
        found: Any = local(run)
        for part in path:
            found = found[part]
        values.append(found)
    return float(np.mean(values))


def personal_scores(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Personalisation T_p against generalisation T_r: a method that gives up neither lies top
    right.
    """
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: Methods) -> None:
        series = {}
        for method, own in methods.items():
            series[method] = [local(r)["t_p"] for r in own], [local(r)["t_r"] for r in own]
        plots.points(
            series,
            xlabel="personalisation $T_p$ (macro-F1)",
            ylabel="generalisation $T_r$ (macro-F1)",
            title=setting,
            ax=ax,
            diagonal=True,
        )
        ax.set(xlim=(0, 1), ylim=(0, 1))

    fig, who = panels(spec, runs, draw)
    what = "Macro-F1 on the own test set (T_p) against the global test set (T_r)"
    return fig, f"{what}, one marker per seed: {who}"


def client_map(counts: np.ndarray) -> np.ndarray:
    """t-SNE of the clients by their class shares, of which the square roots are compared (Hellinger
    distance).
    """
    from sklearn.manifold import TSNE

    share = np.sqrt(counts / counts.sum(1, keepdims=True))
    perplexity = max(2, min(10, len(share) // 4))
    return TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(share)


def client_imbalance(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Figure 1: clients by class mix, the class mix of all and of two clients, FedAvg's macro-F1 on
    each client.
    """
    from fedbook import plots
    from fedbook.data.ecg import CLASSES

    run = finished(runs)[0]
    found = local(run)
    counts = np.array(found["class_counts"], dtype=float)
    near = found["near"]["client"]
    far = found["far"]["client"]
    fig, (a, b, c) = plots.panels(3)
    x, y = client_map(counts).T
    a.scatter(x, y, s=14, color=plots.BLUE)
    for name, i, colour in (("near", near, plots.GREEN), ("far", far, plots.RED)):
        a.scatter(x[i], y[i], s=60, color=colour, marker="*", label=f"client {i} ({name})")
    a.set(title="clients by class mix", xlabel="t-SNE 1", ylabel="t-SNE 2", xticks=[], yticks=[])
    shown = (
        ("all", counts.sum(0), plots.BLACK),
        ("near", counts[near], plots.GREEN),
        ("far", counts[far], plots.RED),
    )
    for k, (name, row, colour) in enumerate(shown):
        at = np.arange(len(row)) + 0.27 * (k - 1)
        b.bar(at, row / row.sum(), 0.27, color=colour, label=name)
    b.set(title="class shares", xlabel="class", ylabel="share of training samples")
    if len(counts[0]) == len(CLASSES):  # MIT-BIH's
        b.set_xticks(range(len(CLASSES)), list(CLASSES))
    f1 = np.sort([v for v in run.metrics["clients"]["f1"] if v is not None])
    c.plot(range(1, len(f1) + 1), f1, **plots.look("fedavg"))
    c.axhline(found["t_g"], color=plots.RED, linestyle="--", label="global test")
    c.set(title="FedAvg", xlabel="client, from worst to best", ylabel="macro-F1", ylim=(0, 1))
    for ax, below in ((a, -0.12), (b, -0.2), (c, -0.2)):
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, below), ncols=3, fontsize=7)
    fig.suptitle(heading(spec, [run]), fontsize=8)
    return fig, (
        f"Three panels: {len(counts)} clients by class mix; class shares of all, the nearest and "
        f"the farthest client; FedAvg's macro-F1 per client from {f1[0]:.2f} to {f1[-1]:.2f}, "
        f"global test {found['t_g']:.2f}."
    )


def mean_and_max_loss(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Figure 3: mean and highest training loss of the clients over the rounds."""
    from fedbook import plots

    methods = by_method(runs)
    rounds = finished(runs)[0].metrics["rounds"]
    fig, axes = plots.panels(2)
    told = []
    for ax, name in zip(axes, ("mean", "max")):
        series = {}
        ends = []
        for method, own in methods.items():
            series[method] = [r.metrics["curves"][f"global_loss_{name}"] for r in own]
            last = np.mean([curve[-1] for curve in series[method]])
            ends.append(f"{plots.look(method)['label']} {last:.2f}")
        plots.curves(series, rounds, ylabel=f"{name} training loss of the clients", ax=ax)
        told.append(f"{name}: " + ", ".join(ends))
    plots.legend_outside(fig, axes)
    fig.suptitle(heading(spec, runs), fontsize=8)
    return fig, "Training loss of the clients against round; at the end " + "; ".join(told) + "."


def beta_sweep(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Figure 4: T_p, T_r and T_l against beta, every seed and their mean. Once a seed has every
    beta, those that lack some are left out: seeds differ by more than betas.
    """
    from fedbook import plots

    seeds: dict[int, dict[float, Run]] = {}
    for run in finished(runs):
        seeds.setdefault(run.seed, {})[run.row["beta"]] = run
    x = sorted({beta for by_beta in seeds.values() for beta in by_beta})
    whole = {seed: by_beta for seed, by_beta in seeds.items() if len(by_beta) == len(x)} or seeds
    lines = (
        ("t_p", "personalisation $T_p$", plots.ORANGE, "^"),
        ("t_r", "generalisation $T_r$", plots.GREEN, "s"),
        ("t_l", "local test $T_l$", plots.BLUE, "o"),
    )
    fig, (ax,) = plots.panels(1)
    told = []
    for symbol, label, colour, marker in lines:
        found: dict[float, list[float]] = {beta: [] for beta in x}
        for by_beta in whole.values():
            betas = sorted(by_beta)
            values = [local(by_beta[beta])[symbol] for beta in betas]
            ax.plot(betas, values, color=colour, alpha=0.35, linewidth=0.8)
            for beta, value in zip(betas, values):
                found[beta].append(value)
        mean = [float(np.mean(v)) for v in found.values()]
        ax.plot(x, mean, color=colour, marker=marker, label=label)
        top = x[int(np.argmax(mean))]
        told.append(f"{symbol} {mean[0]:.2f} to {mean[-1]:.2f}, highest at beta {top:g}")
    ax.set(xlabel=r"$\beta$, weight of the own loss", ylabel="macro-F1", ylim=(0, 1))
    plots.legend_outside(fig, [ax])
    used = [run for by_beta in whole.values() for run in by_beta.values()]
    note = "; thin: every seed" if len(whole) > 1 else ""
    fig.suptitle(heading(spec, used, note), fontsize=8)
    start = "own" if spec.name == "fig4_own" else "usual"
    return fig, f"GRP-FED's local tests against beta, {start} start: " + "; ".join(told) + "."


def two_clients(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Figure 5: T_g, T_p and T_l of every method on the client nearest to the global class mix, and
    on the farthest.
    """
    from fedbook import plots

    methods = by_method(runs)
    labels = [plots.look(m)["label"] for m in methods]
    fig, axes = plots.panels(2, width=6.0)
    told = []
    for ax, which in zip(axes, ("near", "far")):
        for k, symbol in enumerate(("t_g", "t_p", "t_l")):
            values = [[local(r)[which][symbol] for r in own] for own in methods.values()]
            height, ends = plots.over_seeds(values)
            x = np.arange(len(height)) + 0.27 * (k - 1)
            bar: dict[str, Any] = {"color": plots.type_colours(3)[k], "label": TESTS[symbol]}
            ax.bar(x, height, 0.27, yerr=ends, error_kw={"lw": 0.8}, **bar)
            said = ", ".join(f"{m} {h:.2f}" for m, h in zip(methods, height))
            told.append(f"{which} {symbol}: {said}")
        ax.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
        client = local(finished(runs)[0])[which]["client"]
        title = f"client {client}, {which} to the global class mix"
        ax.set(title=title, ylabel="macro-F1", ylim=(0, 1))
    plots.legend_outside(fig, axes)
    fig.suptitle(heading(spec, runs, "; bars: lowest to highest seed"), fontsize=8)
    return fig, "Macro-F1 on two clients. " + "; ".join(told) + "."


def switched(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Own studies: the four tests with a change off (grey) and on, one panel per change and
    method.
    """
    from fedbook import plots

    found: dict[tuple[str, str], dict[int, list[Run]]] = {}
    for run in finished(runs):
        sides = found.setdefault((run.row["change"], run.row.method), {})
        sides.setdefault(run.row["on"], []).append(run)
    found = {key: sides for key, sides in found.items() if len(sides) == 2}
    fig, axes = plots.panels(len(found), width=2.6)
    told = []
    for ax, ((change, method), sides) in zip(axes, found.items()):
        look = plots.look(method)
        mean = {on: [mean_of(sides[on], t) for t in TESTS] for on in (0, 1)}
        for on in (0, 1):
            x = np.arange(4) + 0.4 * on - 0.2
            colour = look["color"] if on else "#C8C8C8"
            label = f"on, {look['label']}" if on else "off"
            ax.bar(x, mean[on], 0.4, color=colour, label=label)
        off, on_ = (mean_of(sides[on], "effective_clients") for on in (0, 1))
        ax.set_xticks(range(4), list(TESTS.values()))
        ax.set(title=f"{look['label']}: {change.replace('_', ' ')}", ylabel="macro-F1", ylim=(0, 1))
        ax.set_xlabel(f"effective clients {off:.1f}, then {on_:.1f}", fontsize=7)
        values = [f"{t} {a:.2f} to {b:.2f}" for t, a, b in zip(TESTS, mean[0], mean[1])]
        values.append(f"effective clients {off:.1f} to {on_:.1f}")
        told.append(f"{look['label']}, {change}: {', '.join(values)}")
    plots.legend_outside(fig, axes)
    fig.suptitle(heading(spec, runs), fontsize=8)
    return fig, "What a change does to the four tests. " + "; ".join(told) + "."
