# %% 10.5
@dataclass(frozen=True, kw_only=True)
class Mixed(AdversarialLocal):
    alpha: float = 0.5

    def end(self, local, sent, memory):
        own, here = memory.get("extractor", {}), local.received
        memory["extractor"] = {n: torch.lerp(here[n], v, self.alpha) for n, v in own.items()}
        return super().end(local, sent, memory)


one = methods.get("grp_fed", q=1.0, start="own", **LOCAL)
for SEED in range(3):
    for alpha in (0.0, 0.25, 0.5, 0.75, 1.0):
        mixed = one.replace(personal=Mixed(**vars(one.personal), alpha=alpha))
        found = local_tests(run_again(mixed))
        print(SEED, "alpha", alpha, *(f"{k} {found[k]:.3f}" for k in ("t_g", "t_p", "t_r", "t_l")))

# %% 10.6
from fedbook import Batch


@dataclass(frozen=True, kw_only=True)
class AlsoAbsent(AdversarialLocal):
    """D takes the mean features of classes the client lacks for global ones too."""

    @torch.no_grad()
    def features(self, local):
        f_global = super().features(local)
        everybody = torch.cat([c.train for c in local.federation.clients])
        z, y = Batch(local, everybody).z, local.federation.y[everybody]
        absent = local.federation.class_counts(local.client) == 0
        means = [z[y == c].mean(0) for c in absent.nonzero()[:, 0] if (y == c).any()]
        for row in range(0, len(f_global), 2):  # every second of the client's own
            f_global[row] = means[row // 2 % len(means)]
        return f_global


for SEED in range(3):
    for start in ("own", "received"):
        plain = methods.get("grp_fed", q=1.0, start=start, **LOCAL)
        also = plain.replace(personal=AlsoAbsent(**vars(plain.personal)))
        for name, method in (("as it is", plain), ("with means", also)):
            found = local_tests(run_again(method))
            print(SEED, start, name, *(f"{k} {found[k]:.3f}" for k in ("t_p", "t_r", "t_l")))
net = fedavg.model.cpu().eval()
near = {}
for client, row in zip(federation.clients, class_table):
    with torch.no_grad():
        z = net.embed(federation.inputs(client.train))
    for c, n in enumerate(row.tolist()):
        if n:
            mine = z[federation.y[client.train] == c]
            to_mean = torch.nn.functional.cosine_similarity(mine, mine.mean(0)[None])
            near.setdefault(min(n, 4), []).append((n, to_mean.max().item()))
width = z.shape[1]
print(width, "features,", federation.num_classes, "classes,", 4 * width * federation.num_classes)
sent = sum(4 * p.numel() for p in net.parameters())
print("the model:", sent, "bytes; classes absent:", (class_table == 0).sum(1).tolist())
for n, found in sorted(near.items()):
    size, cos = np.array(found).T
    print(n, "beats" if n < 4 else "beats or more", len(size), "means, nearest beat", cos.round(3))
print("beats by class and client", class_table.tolist())
