# %% 00.4
def lines(seed):
    global SEED
    SEED = seed
    first, better = run_again(), run_again(network="cnn", rounds=20)
    return pd.DataFrame({f"mlp, seed {seed}": first, f"cnn, 20 rounds, seed {seed}": better})


print(pd.concat([lines(seed) for seed in range(3)], axis=1).T.to_string())
