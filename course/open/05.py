# %% 05.5
both = {f"similarity={s}": run_again(similarity=s) for s in ("cosine", "dot")}
both["fresh=True"] = run_again(fresh=True)
print(pd.DataFrame(both).to_string())

# %% 05.6
wrong = {f"T' = {t}": run_again(clusters=t) for t in (2, 5, 10)}
wrong |= {"q = -1": run_again(q=-1), "delta = 0": run_again(delta=0.0)}
print(pd.DataFrame(wrong).to_string())
