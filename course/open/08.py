# %% 08.4
print(
    pd.DataFrame(
        {
            "as it is": told(fit()),
            "4 times": told(fit(epochs=4 * EPOCHS)),
            "numerals": told(fit(target=texts["numerals"][y])),
        }
    ).to_string()
)

# %% 08.5
columns = {"all": told(fit())} | {t: told(fit(omit=(t,))) for t in ("div", "sim", "orth", "recon")}
print(pd.DataFrame(columns).to_string())

# %% 08.6
at_home = dict(participation=0.3, epochs=100)
for strategy in ("global", "federated"):
    found = client_index(federation, embeddings=(every, L), strategy=strategy, **at_home)
    print(strategy, [round(float(v), 3) for v in gap(found.cosines("feature").numpy())])
