"""The gallery: what schemes do by distance, computed by their own parts, and losses in training.

T is that of conf/train/default.yaml, width and heads those of conf/model/medium.yaml, and the
arguments of parts those of conf/scheme and conf/variant, unless a figure says otherwise.

H heads, N distances, M channel pairs, T tokens, K head width.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lengthgen import schemes
from lengthgen.config import compose
from lengthgen.errors import UserError
from lengthgen.report.figures import style
from lengthgen.report.figures.chart import Chart, Line
from lengthgen.report.figures.curve import named, rank
from lengthgen.report.figures.gallery import Panel, draw
from lengthgen.report.figures.layout import laid_out
from lengthgen.runs.directory import load_config, training_log
from lengthgen.schemes import AttentionContext, ModelDims, Scheme
from lengthgen.schemes.absolute.sinusoidal import Sinusoidal
from lengthgen.schemes.bias.t5 import T5

BASES = (100.0, 10_000.0, 500_000.0)  # the second is the paper's, the last Llama 3's
FAR = 250  # distance up to which products and logits are drawn, as in the paper
FEW = 128  # positions and channels of the heat map
KERPLE = ((0.5, 0.1), (0.5, 1.0), (1.0, 0.1), (1.0, 1.0), (2.0, 0.5))  # (r1, r2)
LOWEST = -20.0  # bias that is drawn
LEAST = 1e-6  # weight that is drawn
SHARE = 0.99  # of the weight; how many keys have it is in the names of heads
PER_OCTAVE = 4  # points of a training curve

Plate = tuple[str, Sequence[Panel]]  # a figure's title and its panels
Numbers = dict[str, list[float]]


def gallery(runs: Sequence[Path]) -> dict[str, bytes]:
    """Returns the figures by file name; one of training losses if there are runs."""
    plates = {
        "rope-decay": rope_decay(),
        "rope-wavelengths": rope_wavelengths(),
        "sinusoids": sinusoids(),
        "t5-buckets": t5_buckets(),
        "alibi": alibi(),
        "alibi-window": alibi_window(),
        "kerple": kerple(),
    }
    drawn = {name: draw(panels, title=title) for name, (title, panels) in plates.items()}
    if runs:
        drawn["training-loss"] = laid_out(training_loss(runs))
    return style.files(drawn, **{"svg.fonttype": "none"})  # text stays text, which slides can edit


def dims(**changes: Any) -> ModelDims:
    """Returns the dimensions that the figures are of."""
    model = compose.load("model", "medium", config_dir=None)
    fields = {name: model[name] for name in ("d_model", "n_layers", "n_heads", "init_std")}
    T = compose.load("train", "default", config_dir=None)["length"]
    d_head = model["d_model"] // model["n_heads"]
    return ModelDims(**{**fields, "d_head": d_head, "train_length": T, **changes})


def build(name: str, of: ModelDims, *, variant: str | None = None, **changes: Any) -> Scheme:
    """Returns a shipped scheme with a shipped variant; `changes` are of the part of its name."""
    parts = compose.load("scheme", name, config_dir=None)["parts"]
    parts[name] |= changes
    parts |= compose.load("variant", variant, config_dir=None) if variant else {}
    return schemes.build(parts, layers=None, shape=of)


def context(scheme: Scheme, length: int) -> AttentionContext:
    """Returns the context of the first layer in a call of this length, in float64."""
    of = scheme.all[0].shape
    tokens_BT = torch.zeros((), dtype=torch.int64).expand(1, length)
    x_BTD = torch.zeros((), dtype=torch.float64).expand(1, length, of.d_model)
    c = AttentionContext.of_call(of, tokens_BT, x_BTD, training=False, generator=None)
    return replace(c, acting=scheme.layers[0])


@torch.no_grad()
def biases(scheme: Scheme, length: int) -> Tensor:
    """Returns what the last of `length` queries gets, [H, N] from distance 0."""
    c = context(scheme, length)
    bias_HQS = replace(c, q_pos=c.q_pos[-1:], rows=slice(length - 1, length)).total_bias()
    assert bias_HQS is not None, "a scheme with a bias"
    return bias_HQS[:, 0].flip(-1)


def turned(scheme: Scheme, x_K: Tensor, length: int) -> Tensor:
    """Returns a key as it is turned at positions 0 ... length - 1, [T, K]."""
    c = context(scheme, length)
    x_BHTK = x_K.double().expand(1, 1, length, -1)
    return schemes.through_qk(c.acting.qk, x_BHTK, x_BHTK, c).k_BHSK[0, 0]


def turns(scheme: Scheme, length: int) -> Tensor:
    """Returns exp(i position w_m) of RoPE's channel pairs: what (1, 0) is turned to, [T, M]."""
    half = scheme.all[0].shape.d_head // 2
    x_TK = turned(scheme, torch.cat([torch.ones(half), torch.zeros(half)]), length)
    return torch.complex(x_TK[:, :half], x_TK[:, half:])


def rope_decay() -> Plate:
    of = dims()
    by_base = {f"base {base:,.0f}": build("rope", of, base=base) for base in BASES}
    bounds, logits = Numbers(), Numbers()
    for name, scheme in by_base.items():
        bounds[name] = turns(scheme, FAR + 1).cumsum(-1).abs().mean(-1).tolist()
        x_TK = turned(scheme, torch.ones(of.d_head), FAR + 1)
        logits[name] = (x_TK @ x_TK[0] / of.d_head).tolist()
    title = f"RoPE: long-term decay in a head of {of.d_head} channels (RoFormer, section 3.4.3)"
    return title, [
        Panel(title="(a) Bound on the logit", y="mean |partial sum|", curves=bounds),
        Panel(title="(b) q = k = (1, ..., 1)", y="logit over that at 0", curves=logits),
    ]


def rope_wavelengths() -> Plate:
    of = dims()
    T, longest = of.train_length, 32 * of.train_length
    variants = {"RoPE": None, "PI": "pi", "NTK-aware": "ntk", "YaRN": "yarn"}
    omega = {
        name: turns(build("rope", of, variant=variant), longest)[1].angle()
        for name, variant in variants.items()
    }
    lengths = {name: (2 * math.pi / w_M).tolist() for name, w_M in omega.items()}
    speeds = {name: (w_M / omega["RoPE"]).tolist() for name, w_M in omega.items()}
    slow = sum(length > T for length in lengths["RoPE"])
    levels = {f"T = {T:,}": T, f"32T = {longest:,}": longest}
    x = "channel pair"
    y = "wavelength (tokens)"
    title = (
        f"RoPE: {slow} of {of.d_head // 2} channel pairs complete no turn within T; others at 32T"
    )
    return title, [
        Panel(title="(a) Tokens of a turn", x=x, y=y, curves=lengths, log="y", levels=levels),
        Panel(title="(b) Speed over RoPE's", x=x, y="angle over RoPE's", curves=speeds, log="y"),
    ]


def sinusoids() -> Plate:
    products = Numbers()
    heat: Numbers = {}
    for width in (dims().d_model, FEW):
        [part] = build("sinusoidal", dims(d_model=width)).all
        assert isinstance(part, Sinusoidal)
        pe_TD = part.table(torch.arange(2 * FAR + 1), torch.float64)
        heat = {str(i): row.tolist() for i, row in enumerate(pe_TD[:FEW])}
        products[f"{width} channels"] = (pe_TD @ pe_TD[FAR] / (width / 2)).tolist()
    return "Sinusoidal positions: the product falls with the distance, of either sign", [
        Panel(title="(a) Embeddings", x="channel", y="position", curves=heat, heat=True),
        Panel(title="(b) Inner products", y="product over that at 0", curves=products, first=-FAR),
    ]


def t5_buckets() -> Plate:
    of = dims(n_heads=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        scheme = build("t5", of)
    [part] = scheme.all
    assert isinstance(part, T5)
    n, last = len(part.starts), part.starts[-1]
    part.table.data[0, 0] = -0.01 * torch.arange(n)
    buckets = part.buckets(torch.arange(1, of.train_length)).tolist()
    tables = ("0, -0.01, -0.02 ... by bucket", "before training: random")
    curves: Numbers = dict(
        zip(tables, biases(scheme, of.train_length)[:, 1:].tolist(), strict=True)
    )
    marks = {f"{last} and beyond": last}
    where: dict[str, Any] = {"first": 1, "log": "x", "marks": marks}
    return f"T5: {n} buckets; the distances in one share a learned bias", [
        Panel(title="(a) Bucket of a distance", y="bucket", curves={"": buckets}, **where),
        Panel(title="(b) Biases of two tables", curves=curves, **where),
    ]


def alibi() -> Plate:
    of = dims()
    slopes = {
        f"{n} heads": (-biases(build("alibi", dims(n_heads=n)), 2)[:, 1]).tolist()
        for n in (8, 12, 16)
    }
    bias_HN = biases(build("alibi", of), of.train_length)
    where: dict[str, Any] = {"x": "head", "y": "slope", "first": 1}
    return "ALiBi: a fixed slope for each head; 12 heads are no power of two", [
        Panel(title="(a) Slopes", curves=slopes, log="y", **where),
        Panel(title=f"(b) Biases of {of.n_heads} heads", curves=_by_head(bias_HN), ordered=True),
    ]


def alibi_window() -> Plate:
    of = dims()
    length = 4 * of.train_length
    weights_HN = biases(build("alibi", of), length).softmax(-1)
    nearest_HN = weights_HN.cumsum(-1)
    reach = ((nearest_HN < SHARE).sum(-1) + 1).tolist()
    shares = {
        f"{name}: {n:,}": values
        for n, (name, values) in zip(reach, _by_head(nearest_HN).items(), strict=True)
    }
    weights = _by_head(weights_HN[:, 1:], above=LEAST)
    where: dict[str, Any] = {
        "first": 1,
        "ordered": True,
        "marks": {f"T = {of.train_length}": of.train_length},
    }
    x, y = "nearest n keys", "share of the weight"
    return f"ALiBi as a window: {length:,} keys of equal content, seen by the last query", [
        Panel(title="(a) Weight of a key", y="weight", curves=weights, log="xy", **where),
        Panel(
            title=f"(b) Nearest n keys; n of {SHARE:.0%}", x=x, y=y, curves=shares, log="x", **where
        ),
    ]


def kerple() -> Plate:
    of = dims(n_heads=len(KERPLE))
    panels: list[Panel] = []
    for name, title in {"kerple": "(a) -r1 log(1 + r2 d)", "kerple_power": "(b) -r1 d^r2"}.items():
        scheme = build(name, of)
        for i, parameter in enumerate(("r1", "r2")):
            values = torch.tensor([pair[i] for pair in KERPLE])
            scheme.get_parameter(f"parts.{name}.{parameter}").data[0] = values
        names = [f"r1 = {r1:g}, r2 = {r2:g}" for r1, r2 in KERPLE]
        curves = _by_head(biases(scheme, of.train_length), names, above=LOWEST)
        panels.append(Panel(title=title, curves=curves))
    return f"KERPLE: r1 and r2 are learned for each head; down to {LOWEST:g}", panels


def training_loss(runs: Sequence[Path]) -> Chart:
    """Returns the loss of training batches over the tokens, a line per run.

    A point is the mean over the logged steps of a quarter octave. Raises UserError for a run that
    has logged nothing.
    """
    configs = [load_config(path) for path in runs]
    n_of = Counter(config.scheme.name for config in configs)
    styles = style.scheme_styles(n_of)
    drawn: list[Line] = []
    n_drawn = Counter[str]()
    for path, config in zip(runs, configs, strict=True):
        values = by_quarter_octave(training_log(path, run=config.run_id))
        if not values:
            raise UserError(f"{path}: train.jsonl holds no steps yet; lengthgen train continues it")
        name = config.scheme.name
        look = {
            "color": styles[name].colour,
            "marker": styles[name].marker,
            "linestyle": style.DASHES[n_drawn[name] % len(style.DASHES)],
        }
        n_drawn[name] += 1
        label = name if n_of[name] == 1 else path.resolve().name
        line = Line(
            name=label,
            runs=[config.run_id],
            end=label,
            style=look,
            values=values,
            low={},
            high={},
        )
        drawn.append(line)
    drawn.sort(key=lambda line: rank(line.last, line.name))
    reach = [n for line in drawn for n in line.values]
    octaves = range(math.floor(math.log2(min(reach))), math.ceil(math.log2(max(reach))) + 1)
    return Chart(
        lines=drawn,
        title="loss of training batches, means over quarter octaves of tokens",
        notes=[],
        quantity="nats per token",
        scale="linear",
        ticks=[2**k for k in octaves],
        named=named,
        axis="tokens trained",
        trained=[],
        marks=False,
    )


def by_quarter_octave(rows: Sequence[Mapping[str, Any]]) -> dict[float, float]:
    """Returns the mean loss of each quarter octave of tokens, at its last logged step."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        tokens = row["train/tokens"]
        bins.setdefault(math.floor(PER_OCTAVE * math.log2(tokens)), []).append(
            (tokens, row["train/loss"])
        )
    return {of[-1][0]: math.fsum(loss for _, loss in of) / len(of) for of in bins.values()}


def _by_head(
    values_HN: Tensor, names: Sequence[str] | None = None, *, above: float = -math.inf
) -> Numbers:
    """Returns the values of each head; those below a bound are not drawn."""
    names = names or [f"head {h}" for h in range(1, len(values_HN) + 1)]
    values_HN = values_HN.where(values_HN >= above, math.nan)
    return dict(zip(names, values_HN.tolist(), strict=True))
