# %% 08.4
longer = {"as it is": told(fit()), "4 times": told(fit(epochs=4 * EPOCHS))}
longer["numerals"] = told(fit(target=texts["numerals"][y]))
print(pd.DataFrame(longer).to_string())

# %% 08.5
for SEED in range(3):
    left_out = {term: told(fit(omit=(term,))) for term in ("div", "sim", "orth", "recon")}
    print("seed", SEED)
    print(pd.DataFrame({"all": told(fit())} | left_out).to_string())

# %% 08.6
for SEED in range(3):
    for strategy in ("global", "federated"):
        at_home = dict(strategy=strategy, participation=0.3, epochs=100, ffn=FFN, seed=SEED)
        made = client_index(federation, embeddings=(every, L), **at_home)
        near = made.quality(types, names)["nearest_domain_accuracy"]
        within, across = gap(made.cosines("feature").numpy())
        print(SEED, strategy, f"within {within:.2f} across {across:.2f} nearest {near:.2f}")
