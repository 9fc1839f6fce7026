"""The papers' words for settings, values and metrics, as plain text with a few signs of
mathematics; `fedbook.papers.export` turns them into LaTeX and HTML."""

from __future__ import annotations

from typing import Any

UP = "↑"
DOWN = "↓"
NONE = "–"

# what a metric is called in print, and which way is better
METRICS = {
    "avg": ("Avg", UP),
    "sigma_type": ("σ_type", DOWN),
    "sigma_client": ("σ_client", DOWN),
    "clustering_accuracy": ("clustering accuracy", UP),
    "accuracy": ("accuracy", UP),
    "max_improvement": ("MI", UP),
    "generate_client_index_time": ("generate index", DOWN),
    "training_total_time": ("training, total", DOWN),
    "training_time_to_fedavg_best": ("training to FedAvg's best", DOWN),
    "total_time_to_fedavg_best": ("total to FedAvg's best", DOWN),
    "global_test": ("T_g", UP),
    "local_test": ("T_l", UP),
    "personalization": ("T_p", UP),
    "generalization": ("T_r", UP),
    "trainable_and_communicated_parameters": ("parameters", DOWN),
    "testing_flops": ("testing", DOWN),
    "training_flops_per_update": ("training / update", DOWN),
    "embedding_inference_flops": ("embedding", DOWN),
    "total_flops_term_testing": ("total: testing", DOWN),
    "total_flops_term_embedding": ("total: embedding", DOWN),
    "total_flops_coefficient_of_updates": ("total: per update", DOWN),
    "shared_prompt_similarity": ("shared", UP),
    "group_prompt_similarity_global": ("group (global)", DOWN),
    "group_prompt_similarity_local": ("group (local)", UP),
    "worst_client": ("worst client", UP),
}
# a setting's name in print
SETTINGS = {
    "dataset": "Dataset",
    "method": "Method",
    "metric": "Metric",
    "dif": "DIF",
    "t_prime": "T'",
    "rate_of": "",
    "delta": "δ",
    "tau": "τ",
    "beta": "β",
    "participation": "γ",
    "local_epochs": "E",
    "epochs": "E",
    "num_groups": "groups",
    "top_k": "U",
    "clustering_algo": "Algo",
    "fedgr": "FedGR",
    "fedgc": "FedGC",
    "pt_fedavg": "PT-FedAvg",
    "variant": "",
    "ablation_group": "Ablation",
}
SWITCHES = ("fedgr", "fedgc", "pt_fedavg", "group_prompt", "orthogonal_key", "u_inference")
CASES = {"none": NONE, "i": "+ i", "i+ii": "+ i+ii", "i+ii+iii": "+ i+ii+iii", "best": NONE}
STRATEGIES = {
    "none": "Original",
    "federated": "Client2Vec (FEDERATED)",
    "global": "Client2Vec (GLOBAL)",
    "best": "MI",
}
# the values of a setting in print; those not named here stand as they are
VALUES: dict[str, dict[Any, str]] = {
    "dataset": {
        "digit_five": "Digit-Five",
        "domainnet": "DomainNet",
        "pacs": "PACS",
        "cifar10": "CIFAR-10",
        "cifar100": "CIFAR-100",
        "cifar100_c": "CIFAR-100-C",
        "five_dataset": "Five-Dataset",
        "mit_bih": "MIT-BIH",
        "shakespeare": "Shakespeare",
    },
    "architecture": {
        "lstm": "LSTM",
        "resnet18": "ResNet-18",
        "resnet50": "ResNet-50",
        "mobilenet_v2": "MobileNet V2",
        "vit_cct_7_3x1": "CCT-7/3x1",
        "vit_b16": "ViT-B/16",
    },
    "strategy": STRATEGIES,
    "case_studies": CASES,
    "client2vec": {0: "alone", 1: "+ Client2Vec"},
    "clustering_algo": {"gmm": "GMM", "finch": "FINCH", "kmeans": "K-Means"},
    "pretrained": {0: "from scratch", 1: "pre-trained"},
}
SPREADS = {
    "std_over_3_runs": "standard deviation over 3 runs",
    "pm_over_3_seeds": "± over 3 seeds",
    "pm_unspecified": "±, of what is not said",
    "variance_last_10_rounds": "variance over the last 10 rounds",
}
UNITS = {
    "percent": "percent",
    "percentage_points": "percentage points",
    "million": "million",
    "macro_f1": "macro-F1",
    "seconds": "seconds",
    "mflops_as_printed": "FLOPs printed as M",
}


def metric(name: str) -> str:
    """A metric with an arrow to the better side."""
    said, better = METRICS.get(name, (name.replace("_", " "), ""))
    return f"{said} {better}".rstrip()


def better(name: str) -> str:
    """Which way of a metric is better: "↑", "↓", or "" where nobody says."""
    return METRICS.get(name, ("", ""))[1]


def setting(name: str) -> str:
    """The name of a setting."""
    return SETTINGS.get(name, name.replace("_", " "))


def value(name: str, found: Any) -> str:
    """A value of a setting, without the setting's name."""
    if found is None:
        return NONE
    if name in ("method", "rate_of"):
        from fedbook.plots import look

        said = str(look(found)["label"])
        return said if name == "method" else f"{said}'s rate"
    if name == "metric":
        return metric(found)
    if name in SWITCHES:
        return "✓" if found else NONE
    known = VALUES.get(name, {})
    text = found.replace("_", " ") if isinstance(found, str) and name != "dataset" else str(found)
    return known.get(found, text)


def assigned(name: str, found: Any) -> str:
    """A value that stands alone: a number needs its setting's name, "DIF = 10"."""
    said = value(name, found)
    if name in VALUES or isinstance(found, str) or found is None or name in SWITCHES:
        return said
    return f"{setting(name)} = {said}"
