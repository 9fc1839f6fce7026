r"""One table of symbols, one list of words, and Algorithm 1 of every paper in our words.

This file is the source; `fedbook course glossary` writes notebooks/glossary.ipynb from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedbook.files import write_atomically

# symbol, notebook, meaning, in the code
SYMBOLS = (
    ("A_i", "09", "how near client i was to the clients of all rounds so far", "`state['A']`"),
    ("a_k", "04", "weight of client k before or after normalising", "`normalise(...)`"),
    ("B", "07", "matrix of the G keys, one per group of images", "`model.keys`"),
    ("B", "08", "number of samples in a batch", "`batch_size`"),
    ("B^f", "09", "matrix of the clients' feature indices", "`Projected.B`"),
    ("b_g", "07", "key of group g, a fixed unit vector", "`model.keys[g]`"),
    (
        r"\beta",
        "05",
        "FedGR: how far a group's loss replaces a client's own",
        "`GroupReweighting.beta`",
    ),
    (r"\beta_g^i", "07", "FGPT: what client i counts for the prompt of group g", "`GroupCounts`"),
    (
        r"\beta_i",
        "08, 09",
        "Client2Vec: the index of client i, halves $f$ and $l$",
        "`ClientIndex`",
    ),
    (r"\beta", "10", "GRP-FED: weight of the fit against the game", "`AdversarialLocal.beta`"),
    ("C", "02", "number of classes", "`num_classes`"),
    ("C_k", "05", "the classes that occur at client k", ""),
    ("C^t", "09", "the clients of round t", "`record.participants`"),
    ("C", "10", "the classifier, on top of the extractor F", "`model.head`"),
    ("D", "08", "embedding of a sample", "`embed(...)`"),
    ("D", "10", "discriminator: does a feature come from the global extractor?", "`two_layers`"),
    (r"\delta,\ \gamma", "05", "FedGR: end value and pace of beta", "`delta`, `gamma`"),
    ("E", "01", "local epochs or steps of a round", "`epochs`"),
    ("E", "08", "epochs of training the index", "`index_epochs`"),
    ("e(x)", "03, 07", "class token of an image from the frozen network", "`model.query`"),
    (r"\eta", "all", "learning rate of a client", "`lr`"),
    (r"\eta_q", "10", "pace of the power q", "`eta_q`"),
    (r"\eta_\lambda", "04", "AFL: pace of the weights", "`eta_lam`"),
    ("F_k", "01, 04", "loss of client k as a function of the model", "`Report.loss`"),
    ("F", "10", "feature extractor, global or personal", "`model.embed`"),
    ("G", "07", "number of groups of images", "`groups`"),
    ("g(k)", "05", "group of client k", "`Report.group`"),
    (r"\gamma", "09", "how much of A is kept from round to round", "`gamma`"),
    ("h_k", "01", "curvature of client k's loss", ""),
    ("h(x)", "03, 05", "vector of GC-Net that shifts an image's prompts", "`model.h`"),
    (r"\bar h_k", "05", "mean of h over client k, balanced over classes", "`class_balanced_mean`"),
    ("H_i", "05", "centre of group i of clients", "`centres`"),
    ("K", "05", "number of clients", "`len(federation)`"),
    ("K", "07", "number of nearest groups that vote in FGPT-U", "`top_k`"),
    ("L_k", "05", "mean loss of client k at the received model", "`Report.loss`"),
    (r"\tilde L_i", "05", "mean of L over group i of clients", "`group_mean`"),
    ("L_j", "08", "embedding of the label of sample j", "`embed(...)`"),
    ("L_m", "10", "mean loss of client m at the received model", "`Report.loss`"),
    (r"\lambda_1,\ \lambda_2", "05", "weights of l_GC and l_RA", "`lam1`, `lam2`"),
    (r"\lambda_1", "09", "how strongly weights are held near q", "`lam1`"),
    (r"\lambda_k", "04, 10", "weight of client k (AFL, GRP-FED)", "`normalise(...)`"),
    ("M", "09, 10", "number of clients", "`len(federation)`"),
    ("m", "01", "momentum of the server", "`server_momentum`"),
    ("m_k", "01", "part of its way that client k goes in a round", ""),
    ("N_i", "02", "number of clients of type i", "`clients_per_domain`"),
    ("N_g^i", "07", "how often client i's images chose group g", "`counts`"),
    ("n_k", "all", "number of training samples of client k", "`len(client.train)`"),
    (r"\omega_k,\ p_k", "01, 05", "n_k divided by the sum over participants", "`BySize`"),
    ("p", "03, 05, 07", "a prompt, or the prompts", "`model.prompts`, `model.groups`"),
    ("p_i^t", "09", "probability of client i to be drawn; also its weight", "`log_probabilities`"),
    (
        r"\phi,\ \psi",
        "05",
        "parameters of the classifier and of GC-Net",
        "`model.head`, `model.gc_net`",
    ),
    ("q", "04, 05, 10", "power of the loss in the weights", "`q`"),
    ("q_i", "09", "weight of client i without the index", "`weigh` of the base method"),
    ("R", "05", "number of rounds", "`rounds`"),
    ("R", "10", "local epochs of a round", "`epochs`"),
    (r"\rho", "02", "ratio of client counts of neighbouring types", "`domain_ratio`"),
    (r"\rho", "04", "radius of SAM", "`rho`"),
    ("S", "03, 07", "number of shared prompts", "`prompts`"),
    ("S(i, C)", "08, 09", "how near client i is to a set of clients", "`to_group`"),
    ("S_t", "10", "the clients of round t", "`record.participants`"),
    ("s", "04", "part of the way that q-FFL's server goes", "`log['step']`"),
    ("s", "07", "number of classes per client", "`s`"),
    ("s^t", "10", "spread of the losses in round t", "`log['spread']`"),
    (
        r"\sigma",
        "02",
        "standard deviation over clients or types (population)",
        "`metrics.sigma_type`",
    ),
    ("T'", "05", "number of groups of clients asked for", "`clusters`"),
    ("T", "07, 10", "number of rounds", "`rounds`"),
    ("T_g", "10", "score of the global model on everybody's data", ""),
    ("T_p", "10", "score of personal models on their own data", "`local_tests`"),
    ("T_r", "10", "score of personal models on everybody's data", "`local_tests`"),
    ("T_l", "10", "mean over clients of the harmonic means of both", "`local_tests`"),
    ("t", "04", "TERM: tilt", "`t`"),
    (r"\tau", "05, 09", "temperature of a softmax", "`tau`"),
    (r"\theta", "05, 10", "all trained parameters", "`run.params`"),
    ("U", "07", "number of layers; in FGPT-U it names the ensemble", "`len(vit.blocks)`"),
    ("u", "07", "layer at which the group prompt enters", "`layer`"),
    ("u_j", "08", "part of sample j's embedding that the label does not explain", "`decompose`"),
    ("W_C", "07", "classifier", "`model.head`"),
    ("w", "01, 04", "the model, here one number", ""),
    ("w", "09", "weight of the local loss (iii)", "`weight`"),
    ("Z_u, E_u", "07", "prompt tokens and patch tokens after layer u", ""),
    ("z", "03, 05", "feature that enters the classifier", "`batch.z`"),
    ("z_0", "05", "z under the received parameters", "`ModelContrast`"),
    ("z_j", "08", "part of sample j's embedding that the label explains", "`decompose`"),
    (r"z_\text{prev}", "05", "z under the client's last local parameters", "`ModelContrast`"),
)

TERMS = (
    (
        "aggregation",
        "The server makes one model from those of the clients, usually a weighted mean.",
    ),
    ("backbone", "The large network that is taken as it is, mostly frozen."),
    ("class token, cls", "The token of a ViT that the classifier reads after the last layer."),
    ("client", "One holder of data that trains the model at home: a phone, a hospital, a shop."),
    (
        "client drift",
        "Many local steps pull each client to its own optimum; the mean ends elsewhere.",
    ),
    ("client index", "A vector per client that says how its data differ, made before training."),
    ("client type", "A group of clients that differ from the others in the same way."),
    ("communication round", "Send the model, train at the clients, send back, aggregate."),
    ("contrastive loss", "Pulls a vector towards one candidate and away from the others."),
    ("cross-entropy", "Minus the log of the probability given to the right class."),
    ("DIF", "Domain imbalance factor: clients of the most frequent type for one of the rarest."),
    (
        "Dirichlet split",
        "Each class is dealt out in random shares; small alpha, one-sided clients.",
    ),
    (
        "discriminator",
        "A network that tells two kinds of features apart, as the opponent in a game.",
    ),
    ("domain", "How samples look: photograph or sketch, this scanner or that one."),
    ("effective number", "How many equal shares would be as concentrated as these."),
    ("embedding, feature", "The vector a network makes of a sample."),
    ("FINCH", "Clustering: everybody joins the group of its nearest neighbour."),
    ("frozen", "Not trained."),
    ("GMM", "Gaussian mixture: clusters are bell-shaped clouds, fitted by maximum likelihood."),
    ("group", "Clients (FedGCR) or images (FGPT) that a method treats alike."),
    ("K-Means", "Clustering: every point belongs to the nearest of K centres, centres are means."),
    ("logits", "Scores of the classes before the softmax."),
    ("long tail", "A few frequent classes or clients and many rare ones."),
    ("macro-F1", "The mean over classes of F1; rare classes count as much as frequent ones."),
    ("momentum", "A velocity that remembers past steps."),
    ("non-IID", "Clients' data do not come from one distribution."),
    ("objective", "What a client minimises; losses add up."),
    ("paired difference", "The difference of two methods under the same seed, then over seeds."),
    ("participation", "The share of clients that take part in a round."),
    ("partition", "The function that deals samples out to clients."),
    ("personal model", "A model, or layers, that stay with one client."),
    ("personalisation, generalisation", "Scores of a personal model on own, on everybody's data."),
    ("prompt", "An extra token that is learned, put among the tokens of a frozen ViT."),
    ("scale", "Size of a run: smoke (seconds), laptop (minutes), paper (as printed, one GPU)."),
    ("seed", "The number from which all randomness of a run follows."),
    ("server", "Sends the model out and aggregates; sees no samples."),
    ("simplex", "All lists of non-negative weights that sum to 1."),
    ("softmax", "Exponentials divided by their sum: scores become weights that sum to 1."),
    ("temperature", "Divides scores before a softmax; small values make it sharp."),
    ("token", "One of the vectors a transformer works on: a patch, the class token, a prompt."),
    ("ViT", "Vision transformer: patches of an image as tokens, mixed by attention."),
)

# title, remark, lines; (text, the paper's own line or "", notebook)
ALGORITHMS: tuple[tuple[str, str, tuple[tuple[int, str, str], ...]], ...] = (
    (
        "FedGCR (notebook 05)",
        "Lines of the paper: S of ServerExecutes, L of LocalUpdate. Where ours differs from print, "
        "notebook 05 says why.",
        (
            (0, "**Server.** There are no groups yet.", "S1"),
            (0, "for every round $r = 1, \\dots, R$, and every client $k$:", "S2, S3"),
            (1, "send $\\theta$, the group centres $H$ and the client's own group $i$", "S4"),
            (1, "**client:** measure $L_k$ and $\\bar h_k$ (4) at the received model", "L9, L15"),
            (
                1,
                "each batch: $h$ = GC-Net(frozen feature), $z$ = ViT with prompts $p + h$",
                "L4-L6",
            ),
            (
                1,
                "loss: cross-entropy; from round 2 on also $\\lambda_1 \\ell_{GC}$ (7) and "
                "$\\lambda_2 \\ell_{RA}$ (8)",
                "L7-L13",
            ),
            (1, "one optimiser step; keep the final parameters for $z_\\text{prev}$", "L14, L15"),
            (1, "send back $\\theta_k$, $\\bar h_k$, $L_k$", "L16"),
            (
                0,
                "cluster the $\\bar h_k$ into $T'$ groups; $H_i$ is the mean of group $i$",
                "S5, S6",
            ),
            (0, "$\\beta = \\delta (1 - \\gamma^{r-1})$ (5)", "S7"),
            (
                0,
                "$w_k \\propto \\omega_k (L_k^{1-\\beta} \\tilde L_{g(k)}^{\\beta})^{q+1}$, "
                "divided by their sum (3)",
                "S8, S9",
            ),
            (0, "$\\theta = \\sum_k w_k \\theta_k$", "S9"),
        ),
    ),
    (
        "FGPT (notebook 07)",
        "Lines of the paper's Algorithm 1.",
        (
            (
                0,
                "**Before.** Draw $G$ orthogonal keys $b_g$ once; they are never trained.",
                "input",
            ),
            (
                0,
                "for every round $t = 1, \\dots, T$: draw clients $S_t$, send $W_C$, $P_S$, "
                "$p_1, \\dots, p_G$",
                "1, 21",
            ),
            (
                1,
                "**client $i$:** each image: $g$ = key nearest to its frozen class token (5)",
                "6, 11-13",
            ),
            (1, "$P_S$ enters at layer 1, $p_g$ at layer $u$; loss: cross-entropy (1)-(4)", "5, 7"),
            (1, "$E$ local epochs; prompts that no image chose get no gradient", "4-8"),
            (1, "send back $W_C$, $P_S$, all $p_g$, and the counts $N_g^i$", "9"),
            (0, "$W_C$, $P_S$: mean weighted by $N_i$ over the participants", "16, 17"),
            (0, "each $p_g$: mean weighted by $N_g^i$; if nobody chose $g$, it stays", "18-20"),
        ),
    ),
    (
        "Client2Vec (notebooks 08, 09)",
        "The paper prints no algorithm; this is its text as one, with its equation numbers.",
        (
            (0, "**Before training.** Embed samples ($D$) and labels ($L$).", ""),
            (
                0,
                "train the network that splits $D$ into $z$ and $u$: "
                "$\\mathcal L_\\text{sim} + \\mathcal L_\\text{orth} + \\mathcal L_\\text{recon} + "
                "\\mathcal L_\\text{div}$",
                "",
            ),
            (0, "$\\beta_i^f$ = mean of $u$, $\\beta_i^l$ = mean of $L$ over client $i$", ""),
            (0, "for every round $t = 1, 2, \\dots$:", ""),
            (
                1,
                "(i) draw clients $C^t$ with $p_i \\propto e^{S(i, C^{t-1})/\\tau}$, none of those "
                "drawn in the last $M/(2|C|)$ rounds",
                "Eq. 1",
            ),
            (
                1,
                "**client:** (iii) loss of the base method $+\\, w \\lVert z_P B^f \\rVert_1 + "
                "w\\, \\mathrm{KL}(f(z), f_P(z_P))$",
                "Eq. 4",
            ),
            (
                1,
                "(ii) $A_i = \\gamma A_i + S(i, C^t)$; weights $\\propto q_i e^{A_i / \\lambda_1}$",
                "Eq. 2, 3",
            ),
            (1, "the server moves as in the base method, with these weights", ""),
        ),
    ),
    (
        "GRP-FED (notebook 10)",
        "Lines of the paper's Algorithm 1.",
        (
            (
                0,
                "**Start.** Global extractor $F$, classifier $C$; each client has its extractor "
                "$F^l$ and discriminator $D$.",
                "2",
            ),
            (0, "for every round $t = 1, \\dots, T$: draw clients $S_t$, send $F$ and $C$", "4-7"),
            (1, "**client $m$:** measure $L_m$ at the received model (1)", "23"),
            (1, "global part: $R$ epochs on cross-entropy, from the received $F$ and $C$", "17-25"),
            (
                1,
                "personal part: step of $F^l$ on $\\beta\\,$cross-entropy$\\,+ (1 - \\beta) L_R$, "
                "with the received $C$ fixed (4), (5)",
                "27-31",
            ),
            (1, "step of $D$: features of the received $F$ against those of $F^l$", "33-36"),
            (1, "send back $F_m$, $C_m$, $L_m$; keep $F^l$ and $D$", "39"),
            (
                0,
                "$q = q + \\eta_q\\,$(change of the losses' spread, relative to its middle) (2)",
                "11",
            ),
            (0, "$\\lambda_m = L_m^q / \\sum_i L_i^q$ over the participants (3)", "12"),
            (0, "$F, C = \\sum_m \\lambda_m (F_m, C_m)$", "13"),
        ),
    ),
)


def sections() -> list[str]:
    """The glossary as texts in Markdown."""
    head = (
        "# Symbols, words and algorithms\n\n"
        "The four papers use one letter for different things: $h$ is a curvature in notebook 01 "
        "and a vector of prompts in 05; there are four kinds of $\\beta$. This page has all of "
        "them. It is generated; its source is `fedbook/course/glossary.py`.\n\n"
        "[Symbols](#Symbols) · [Words](#Words) · [Algorithms](#Algorithms) · "
        "[Start: notebook 00](00_start_here.ipynb)"
    )
    rows = "\n".join(f"| ${s}$ | {n} | {m} | {c} |" for s, n, m, c in SYMBOLS)
    table = "| symbol | notebook | meaning | in the code |\n|:---|:---|:---|:---|\n" + rows
    words = "\n".join(f"- **{word}.** {said}" for word, said in TERMS)
    out = [head, f"## Symbols\n\n{table}", f"## Words\n\n{words}"]
    out.append(
        "## Algorithms\n\nAlgorithm 1 of each paper in our words. The first number is ours. The "
        "last column has the paper's own line."
    )
    for title, remark, lines in ALGORITHMS:
        shown = "\n".join(
            f"| {i} | {'&nbsp;' * 6 * depth}{text} | {line} |"
            for i, (depth, text, line) in enumerate(lines, 1)
        )
        table = f"| line | what happens | in the paper |\n|--:|:---|:---|\n{shown}"
        out.append(f"### {title}\n\n{remark}\n\n{table}")
    return out


def notebook() -> dict[str, Any]:
    """The glossary as a notebook without code."""
    cells = [
        {
            "cell_type": "markdown",
            "id": f"glossary-{i}",
            "metadata": {},
            "source": text.splitlines(keepends=True),
        }
        for i, text in enumerate(sections())
    ]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def text() -> str:
    return json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n"


def write(folder: Path | None = None) -> Path:
    """Write glossary.ipynb beside the notebooks, or to a folder."""
    from fedbook.results import default_folder

    path = (folder or default_folder("notebooks")) / "glossary.ipynb"
    with write_atomically(path) as part:
        part.write_text(text())
    return path
