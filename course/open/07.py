# %% 07.3
one_group = models.build("fgpt", federation, seed=SEED, groups=1, key_seed=SEED)
one_more = models.build("vpt", federation, seed=SEED, extra=1)
print({n: tuple(p.shape) for n, p in one_group.named_parameters() if p.requires_grad})
print({n: tuple(p.shape) for n, p in one_more.named_parameters() if p.requires_grad})
mine = dict(one_group.named_parameters())
with torch.no_grad():
    for name, p in one_more.named_parameters():
        if p.requires_grad:
            twin = mine["groups.0"] if p.shape[0] == 1 else mine[name]
            p.copy_(twin.reshape(p.shape))
ends = [run_again("fgpt", one_group, 1).model, run_again("pt_fedavg", one_more, 1).model]
with torch.no_grad():
    first, second = (end.eval()(six) for end in ends)
print("logits apart at most", (first - second).abs().max().item(), "of", first.abs().max().item())

# %% 07.4
of_styles = torch.stack([h[torch.tensor(style == t)].mean(0) for t in range(5)])
for name, keys, more in (("raw", of_styles, {}), ("centred", of_styles - mean, {"centre": True})):
    by_style = models.build("fgpt", federation, seed=SEED, groups=5, keys=keys, **more)
    g = by_style.select(h)[:, 0]
    print(name, "style", round(nmi(style, g), 2), "digit", round(nmi(digit, g), 2))
    print(
        "  images of each style with its own key",
        [int((g[torch.tensor(style == t)] == t).sum()) for t in range(5)],
    )

# %% 07.5
learned = {"groups": 8, "key_seed": SEED, "relu": True}
for pull, learn in ((0.0, False), (1.0, True)):
    to_learn = models.build("fgpt", federation, seed=SEED, learn_keys=learn, **learned)
    pulled = run_again("fgpt", to_learn, 8, pull=pull)
    used = [round(effective(r.log["usage"]), 1) for r in pulled.records]
    print("pull", pull, "effective groups by round", used, "last", pulled.records[-1].log["usage"])
    print("  accuracy", round(100 * np.mean(pulled.records[-1].test_acc), 1))
