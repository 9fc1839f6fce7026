"""The checked exercises of the notebooks: what the library says the answer is, and three hints.

An exercise asks for a value, or for a function that is tried on `cases`. `expected` computes the
answer with the library, from the case's arguments; nothing here prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Cases = tuple[tuple[Any, ...], ...]


def _call(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    return function(*args)


@dataclass(frozen=True)
class Exercise:
    """One question. `use` says how a student's function is tried on one case."""

    expected: Callable[..., Any]
    hints: tuple[str, ...]
    cases: Cases | Callable[[], Cases] = ()
    use: Callable[[Callable[..., Any], Sequence[Any]], Any] = _call
    rtol: float = 1e-4
    atol: float = 1e-6


# -- 00, 01, 02: rounds, weights, measures ---------------------------------------------------------
TYPED = (
    ([0.9, 0.7, 0.2], [0, 0, 1]),
    ([0.8, 0.6, 0.5, 0.1, 0.3, 0.7], [0, 0, 0, 1, 1, 2]),
    ([0.5, 0.25], [1, 0]),
)
BEST = (2.0, 3.0, 1.0, 0.0)  # the four clients of notebook 01: own best w, and samples
SIZES = (2, 2, 1, 3)


def _avg_type(accuracies: Any, types: Any) -> float:
    from fedbook.metrics import avg_type

    return avg_type(accuracies, types)


def _sigma_type(accuracies: Any, types: Any) -> float:
    from fedbook.metrics import sigma_type

    return sigma_type(accuracies, types)


def _root_weights(*sizes: int) -> np.ndarray:
    return np.sqrt(sizes) / np.sqrt(sizes).sum()


def _from_logs(log_weight: Callable[[int], Any], sizes: Sequence[Any]) -> Any:
    from fedbook.rounds.weights import normalise

    logs = [log_weight(n) for n in sizes]
    return None if None in logs else normalise(logs, range(len(sizes)))


def _average(models: Any, sizes: Any) -> float:
    return float(np.average(models, weights=sizes))


def _six_domains() -> int:
    from fedbook.data.partition import clients_per_domain

    return sum(clients_per_domain(10, domains=6))


# -- 03: prompts -----------------------------------------------------------------------------------
def _fedgc_numbers() -> int:
    import torch

    from fedbook.models.backbones import backbone
    from fedbook.models.prompts import BUILDERS

    with torch.device("meta"):
        large = backbone("vit_base_patch16_224", pretrained=False, device="meta")
        model = BUILDERS["fedgc"](10, large)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _deep(model: Any, images: Any) -> Any:
    import torch

    with torch.no_grad():
        return model.embed(images)


# -- 04: fairness ----------------------------------------------------------------------------------
def _first_zero() -> float:
    """The eta_lambda at which AFL's first update takes the last weight from client 1."""
    p = np.array([0.4, 0.3, 0.2, 0.1])
    F = np.array([-0.5, 0.5, -1.0, 2.0]) ** 2 / 2
    return float(p[1] / (F.mean() - F[1]))


def _tilted(F: Any, p: Any, t: float) -> np.ndarray:
    import torch

    scores = torch.as_tensor(np.log(p) + t * np.asarray(F))
    return torch.softmax(scores, 0).numpy()


def _step(F: Any, squared: Any, q: float, eta: float) -> float:
    import torch

    from fedbook.methods.q_ffl import DynamicStep

    losses = torch.as_tensor(np.asarray(F, float))
    a = torch.softmax(q * losses.log(), 0)
    move = torch.as_tensor(np.asarray(squared, float)) / eta
    return DynamicStep(float(q), float(eta)).length(a, move, losses)


def _sam() -> np.ndarray:
    w = np.array([3.0, 4.0])
    up = 0.5 * w / np.linalg.norm(w)
    return w - 0.1 * (w + up)


# -- 05, 06: FedGCR --------------------------------------------------------------------------------
def _one_group_loss() -> np.ndarray:
    from fedbook import methods
    from fedbook.course.toy import weigh

    fedgr = methods.get("fedgcr", customization=False, q=1.0, delta=1.0, gamma=0.0)
    return weigh(fedgr, [10, 10, 20], [2.0, 4.0, 3.0], [0, 0, 1], rounds=2)


def _lonely() -> float:
    import torch

    from fedbook.methods.moon import contrast

    far = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])  # H_1, H_2 and h_prev = H_1
    return float(contrast(far[:1], far, 0, tau=0.01))


def _three_groups() -> float:
    from fedbook.metrics import clustering_accuracy

    types = np.repeat(range(5), [10, 6, 3, 2, 1])
    return clustering_accuracy([0] * 10 + [1] * 6 + [2] * 6, types)


def _l_ra(z: Any, z_0: Any, z_prev: Any, tau: float) -> float:
    import torch

    from fedbook.methods.moon import contrast

    return float(contrast(z, torch.stack([z_0, z_prev], 1), 0, tau))


def _batches() -> Cases:
    import torch

    rng = torch.Generator().manual_seed(0)
    return tuple(
        (*torch.randn(3, 16, 8, generator=rng, dtype=torch.float64), tau) for tau in (0.5, 1.0)
    )


def _lead() -> float:
    from fedbook import papers

    rows = [r for r in papers.get("fedgcr/table1").rows if r.metric == "avg" and r["dif"] == 10]
    printed = {r.method: float(r.value) for r in rows if r.value is not None}
    return printed.pop("fedgcr") - max(printed.values())


def _sigma_client() -> float:
    from fedbook.metrics import sigma_client

    return sigma_client(np.repeat([94.13, 94.30, 88.28, 71.96, 63.40], [10, 6, 3, 2, 1]))


# -- 07, 08, 09, 10 --------------------------------------------------------------------------------
def _group_prompt() -> float:
    return _average([1.0, 7.0, 3.0], [6, 0, 18])


def _fgpt_numbers() -> int:
    import torch

    from fedbook.models.backbones import backbone
    from fedbook.models.prompts import BUILDERS

    with torch.device("meta"):
        large = backbone("vit_base_patch16_224", pretrained=False, device="meta")
        model = BUILDERS["fgpt"](50, large, groups=25)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _orthogonal_floor() -> float:
    import torch

    from fedbook.models.dsa_ign import orthogonality_loss

    return float(orthogonality_loss(torch.eye(50), torch.eye(50)))


def _two_camps() -> float:
    import torch

    from fedbook.models.dsa_ign import diversity_loss

    halves = torch.tensor([[1.0, 0.0]] * 25 + [[-1.0, 0.0]] * 25, dtype=torch.float64)
    return float(diversity_loss(halves))


def _weight_by_index() -> float:
    import torch

    from fedbook.methods.client_index import to_group
    from fedbook.rounds.weights import normalise

    sizes = torch.tensor([1.0, 3.0], dtype=torch.float64)
    S = to_group(torch.eye(2, dtype=torch.float64), sizes, [0, 1])
    return normalise(sizes.log() + S, [0, 1])[1]


def _cold() -> int:
    from fedbook.methods.client2vec import SampleBySimilarity

    stage = SampleBySimilarity(participation=0.1)
    return stage.window(60) * stage.count(60) + stage.count(60)


def _effective() -> float:
    from fedbook.metrics import effective_clients

    weights = np.array([1.0, 1.0, 2.0]) ** 2
    return effective_clients(weights / weights.sum())


def _adapted() -> float:
    from fedbook.methods.grp_fed import adapted

    return adapted(10, 0.4, 0.1, 0.5)


def _generalisation() -> float:
    t_l = 0.6
    t_p = 0.9  # t_l = 2 t_p t_r / (t_p + t_r)
    return t_l * t_p / (2 * t_p - t_l)


FAR = np.array([1.0, 4.0, 9.0, 16.0])


def _fgpt_bytes() -> int:
    return 4 * (4 * 192 + 8 * 192 + 192 * 10 + 10)


def _two_means() -> list[float]:
    from fedbook.metrics import avg_client, avg_type

    accuracies = [0.9] * 7 + [0.3]
    return [avg_client(accuracies), avg_type(accuracies, [0] * 7 + [1])]


def _weights_by_loss() -> np.ndarray:
    demand = np.array([10, 20, 10]) * np.array([2, 1, 2])
    return demand / demand.sum()


def _half_width() -> float:
    from fedbook.papers.evidence import quantile

    return quantile(0.975, 3) * float(np.std([2, 4, 6], ddof=1)) / 3**0.5


EXERCISES: dict[str, Exercise] = {
    "00.1": Exercise(
        _avg_type,
        (
            "Two means, one inside the other.",
            "First the mean accuracy of every type, then the mean of those.",
            "pandas: a Series, groupby(types), mean, and once more mean.",
        ),
        TYPED,
    ),
    "00.2": Exercise(
        _root_weights,
        (
            "normalise takes logarithms of weights and makes them sum to 1.",
            "The weight is to be proportional to the square root of n. What is its logarithm?",
            "The logarithm of a power is the exponent times the logarithm.",
        ),
        ((4, 16), (1, 9, 25)),
        _from_logs,
    ),
    "01.1": Exercise(
        lambda: _average(BEST, SIZES),
        (
            "Look up the formula for where FedAvg ends. It weighs the clients by p_k m_k.",
            "With equal curvatures all m_k are equal. What happens to them in the quotient?",
            "What is left is a mean of the clients' own best w. By what is it weighted?",
        ),
    ),
    "01.2": Exercise(
        _average,
        (
            "Client k counts n_k of all n samples.",
            "Multiply each model by its size, and add up.",
            "Divide the sum by the number of all samples.",
        ),
        (([0.2, 1.2, 0.1, 0.0], [2, 2, 1, 3]), ([1.0, -1.0], [3, 1]), ([5.0], [7])),
    ),
    "02.1": Exercise(
        _six_domains,
        (
            "There are six powers of rho, from the fifth down to the zeroth.",
            "Round each of them before you add.",
            "1.6 to the fifth is about 10.49, which is 10 clients.",
        ),
    ),
    "02.2": Exercise(
        _sigma_type,
        (
            "One number per type first: the mean over its clients.",
            "Then the standard deviation of these few numbers.",
            "The population one: divide by the number of types, not by one less (ddof=0).",
        ),
        TYPED,
    ),
    "03.1": Exercise(
        _fedgc_numbers,
        (
            "Three parts are trained: prompts, GC-Net and head. The ViT is frozen.",
            "A linear layer from a to b numbers has a b weights and b biases.",
            "GC-Net has two such layers, 768 to 3072 and back; the head goes from 768 to 10.",
        ),
    ),
    "03.2": Exercise(
        _deep,
        (
            "Before each layer: throw the old prompts away, put this layer's in.",
            "Remember how many tokens there are without prompts; t[:, :that] are the image's.",
            "p.expand(len(x), -1, -1) gives every image its copy; end with vit.norm(t)[:, 0].",
        ),
        rtol=1e-3,
        atol=1e-4,
    ),
    "04.1": Exercise(
        _first_zero,
        (
            "After the update, client 1 has p_1 + eta F_1 - theta.",
            "Put in theta = eta (mean of the four losses), and set the result to zero.",
            "Solve p_1 = eta (mean of F - F_1) for eta.",
        ),
    ),
    "04.2": Exercise(
        _tilted,
        (
            "exp(1000) is infinite. exp(0) is not.",
            "Dividing all weights by the same number changes nothing after normalising.",
            "Take score = log p + t F, subtract its largest entry, then exp, then normalise.",
        ),
        (
            (np.array([0.1, 1.0, 0.4]), np.array([0.5, 0.2, 0.3]), 1000.0),
            (np.array([0.1, 1.0, 0.4]), np.array([0.5, 0.2, 0.3]), 2.0),
            (np.array([3.0, 3.0]), np.array([0.25, 0.75]), -5.0),
        ),
    ),
    "04.3": Exercise(
        _step,
        (
            "First the weights a_i: losses to the power q, divided by their sum.",
            "s = 1 / (1 + q times a sum over clients).",
            "Each client adds a_i times squared distance / eta / its loss.",
        ),
        (
            (np.array([1.0, 1.0, 2.0, 4.0]), FAR, 1, 0.5),
            (np.array([1.0, 1.0, 2.0, 4.0]), FAR, 0, 0.5),
            (np.array([0.2, 0.9, 0.5]), np.array([0.01, 0.04, 0.02]), 10, 0.1),
        ),
    ),
    "04.4": Exercise(
        _sam,
        (
            "The gradient of F at w is w itself. How long is it?",
            "First go up: a step of length rho = 0.5 along the gradient. Take the gradient there.",
            "Then go down from the old w with rate 0.1 along that second gradient.",
        ),
    ),
    "05.1": Exercise(
        _one_group_loss,
        (
            "At beta = 1 a client's own loss has the exponent 0.",
            "What is the mean loss of each of the two groups?",
            "If both groups have the same loss, what is left of the weights?",
        ),
    ),
    "05.2": Exercise(
        _lonely,
        (
            "Write the denominator out. Which terms in it are equal?",
            "If all other centres are infinitely far, two equal terms are left below.",
        ),
    ),
    "05.3": Exercise(
        _three_groups,
        (
            "A group counts as right those clients that have its most frequent type.",
            "Three groups can have at most three most frequent types. Which ones are best?",
            "Add the clients of those types, and divide by all 22.",
        ),
    ),
    "05.4": Exercise(
        _l_ra,
        (
            "F.cosine_similarity(z, z_0) gives one cosine per image.",
            "With two candidates the softmax is a sigmoid of their difference over tau.",
            "-log sigmoid(a - b) is softplus(b - a); take the mean over images.",
        ),
        _batches,
        rtol=1e-5,
    ),
    "06.1": Exercise(
        _lead,
        (
            "The dictionary `printed` has the Avg of all eight methods.",
            "FedGCR's own must not be among those it is compared with.",
            "The difference to the largest of the other seven.",
        ),
    ),
    "06.2": Exercise(
        _sigma_client,
        (
            "22 clients, 22 accuracies; those of a domain are equal.",
            "np.repeat(accuracies, clients) makes the list of 22.",
            "The population standard deviation: numpy's .std() as it is.",
        ),
    ),
    "07.1": Exercise(
        _group_prompt,
        (
            "A client's prompt counts as often as the client selected the group.",
            "A client that never selected it has weight 0, whatever its prompt is.",
            "Sum of count times prompt, divided by the sum of counts.",
        ),
    ),
    "07.2": Exercise(
        _fgpt_numbers,
        (
            "Three parts: shared prompts, group prompts, head.",
            "Each prompt is one token of 768 numbers.",
            "The head has 768 weights and one bias for every class.",
        ),
    ),
    "08.1": Exercise(
        lambda: 0.0,
        (
            "Patch p and patch p + 16 are equal when they enter. Does a layer change that?",
            "Attention sums over all patches; equal patches get equal sums.",
            "Measure: blind.decompose(X) gives z and u; take the largest absolute difference.",
        ),
        atol=1e-4,
    ),
    "08.2": Exercise(
        _orthogonal_floor,
        (
            "How many of the 50 x 50 pairs have j = k? What is their cosine?",
            "The other pairs can have cosine 0 at best.",
            "The mean over all pairs is a sum divided by 2500.",
        ),
    ),
    "08.3": Exercise(
        _two_camps,
        (
            "For one u_j: how many of the other 49 are equal to it, how many opposite?",
            "Cosine 1 or -1; each adds the exponential of its cosine.",
            "The logarithm of that sum; all j give the same.",
        ),
    ),
    "09.1": Exercise(
        _weight_by_index,
        (
            "First S of each client to the pair {0, 1}: a mean weighted by sizes, of cosines.",
            "A client's cosine with itself is 1, with the other 0.",
            "The weight is n_i exp(S_i), divided by the sum over both.",
        ),
    ),
    "09.2": Exercise(
        _cold,
        (
            "For how many rounds is a client banned? Clients over twice the number per round.",
            "So many rounds times 6 clients are banned at any time.",
            "Six more must be there to be drawn.",
        ),
    ),
    "10.1": Exercise(
        _effective,
        (
            "The weights first: losses squared, divided by their sum.",
            "Effective clients: 1 over the sum of squared weights.",
            "The squared weights have the denominator 36.",
        ),
    ),
    "10.2": Exercise(
        _adapted,
        (
            "Equation (2): the change of the spread, relative to the middle of old and new.",
            "The spread falls, so q falls.",
            "The middle of 0.4 and 0.1 is 0.25.",
        ),
    ),
    "10.3": Exercise(
        _generalisation,
        (
            "Write the harmonic mean 2ab / (a + b) with a = 0.9 and unknown b.",
            "Multiply by the denominator and collect the terms with b.",
        ),
    ),
    "11.1": Exercise(
        _fgpt_bytes,
        (
            "Count the numbers first: prompts, group prompts, the head with its bias.",
            "A prompt and a group prompt have d = 192 numbers each.",
            "A number of single precision has four bytes.",
        ),
    ),
    "11.2": Exercise(
        _two_means,
        (
            "The mean over clients counts every client once.",
            "The mean over types counts every style once, whoever many clients it has.",
        ),
    ),
    "12.1": Exercise(
        _weights_by_loss,
        ("Multiply size and loss of each client.", "Divide by the sum of the three."),
    ),
    "12.2": Exercise(
        _half_width,
        (
            "The standard deviation of the three differences, with n - 1.",
            "Divide by the root of n, multiply by t.",
        ),
    ),
    "13.1": Exercise(
        lambda: 20,
        ("Which stages of FedGCR act before training?", "Each exchange is one message a client."),
    ),
    "13.2": Exercise(
        lambda: 40 / 70,
        ("Who does not answer does not count.", "The others' samples make up the whole."),
    ),
}
