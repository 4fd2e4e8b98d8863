# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A curve over lengths
#
# Two small models are trained on windows of 32 tokens and measured at up to 16 times that length,
# within seconds on a CPU. The documents are synthetic: copies of earlier words are planted in them.

# %%
import lengthgen

T = 32
small = {
    "model": {"d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 128},
    "corpus": {"documents": 40, "document_tokens": 1200, "alphabet": 16, "copy_tokens": 8},
    "train": {"length": T, "batch_tokens": 512, "tokens": 100_000, "precision": "fp32"},
    "eval": {"lengths": [T, 2 * T, 4 * T, 8 * T, 16 * T], "reach": 16 * T, "targets": 16},
    "runtime": {"device": "cpu", "wandb": "off"},
}

# %% [markdown]
# `train` returns the run directory. Repeating the cell trains nothing again.

# %%
runs = [lengthgen.train("corpus=synthetic", scheme=name, **small) for name in ("rope", "alibi")]

# %% [markdown]
# `results` reads what was evaluated, as a data frame with a row for each run, protocol, variant and
# length. Here the variant `window` is left out.

# %%
found = lengthgen.read_results(runs)
table = found[found["variant"].isna()].pivot_table(index="length", columns="scheme", values="loss")
table.round(2)

# %%
axes = table.plot(logx=True, marker="o", xlabel="length", ylabel="loss in nats per token")
axes.set_xticks(table.index, labels=[f"{length // T}T" for length in table.index])
axes.set_xticks([], minor=True)
axes.axvline(T, color="gray", linestyle=":")  # what the models were trained on
axes.figure.savefig("curve.svg")
