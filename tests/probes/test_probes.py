"""probes: numbers against slow, plain oracles, and properties that hold for every scheme."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from small import VOCAB, create, hidden, is_shift_invariant, small_config, small_model, some_tokens
from small_corpora import random_corpus
from torch import Tensor

from lengthgen.data.windows import Endpoint
from lengthgen.model.attention import attend
from lengthgen.model.transformer import Block, Transformer
from lengthgen.probes import attention, bias, position, receptive_field
from lengthgen.probes.base import ProbeInputs, ProbeText
from lengthgen.probes.run import requested_probes
from lengthgen.probes.shift_invariance import ShiftInvariance
from lengthgen.terminal import Progress

T = 16
# Of each way in which a scheme acts, and of each way in which a model reads a text, one.
SCHEMES = [
    *("alibi", "cope", "fox", "gated_delta", "kerple", "learned_absolute", "nope", "pope"),
    *("randomized_rope", "shaw", "sinusoidal", "stick_breaking", "t5_conv", "tape"),
    *("transformer_xl", "transformer_xl_recurrent"),
]
VARIANTS = [("rope", variant) for variant in ("window", "yarn", "rerope", "logn", "bca")]
CASES = [*((name, None) for name in SCHEMES), *VARIANTS]
EVERY = pytest.mark.parametrize(("name", "variant"), CASES)


@cache
def every_model(name: str, variant: str | None) -> Transformer:
    """A model in fp32 that no test may change."""
    return small_model(name, variant, dtype=torch.float32)


def inputs_of(
    model: Transformer, *, documents: Sequence[int] = (0, 1), max_context: int = 64
) -> ProbeInputs:
    return ProbeInputs(
        model=model.requires_grad_(False),
        corpus=random_corpus(max(documents) + 1, 200),
        endpoints=[Endpoint(d, 100 + d) for d in documents],
        max_context=max_context,
        seed=0,
        show=Progress(is_main=False),
    )


def parts_model(parts: str) -> Transformer:
    """A model with parts given as YAML."""
    config = small_config("scheme=nope", f"+scheme.parts={parts}")
    return create(config, vocab_size=VOCAB).double().eval()


def near(got: list[list[float]], want: Tensor) -> None:
    torch.testing.assert_close(torch.tensor(got).double(), want, rtol=1e-5, atol=1e-9)


def texts(inputs: ProbeInputs, length: int) -> list[tuple[Tensor, Tensor]]:
    """The windows of all endpoints, cut by hand: [length] tokens, and those that follow each."""
    cut: list[tuple[Tensor, Tensor]] = []
    for document, end in inputs.endpoints:
        tokens = torch.tensor(inputs.corpus.validation.document(document).tolist())
        cut.append((tokens[end - length : end], tokens[end - length + 1 : end + 1]))
    return cut


def dense_weights(model: Transformer, tokens_T: Tensor) -> list[Tensor]:
    """Every layer's attention weights [H, T, T]: what attention makes of values that are I."""
    weights, n = list[Tensor](), len(tokens_T)
    x_BTD, c = model.embedded(tokens_T[None], generator=None)
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        c = replace(c, layer=i, hooks=model.scheme.layers[i])
        x_BTC, qkv_BTE = block.project(x_BTD, c)
        at = c.of_queries(x_BTC, n_queries=n)
        q, k, _ = block.mixed(qkv_BTE, at)
        weights.append(attend(q, k, torch.eye(n).to(q.dtype).expand(*q.shape[:2], -1, -1), at)[0])
        x_BTD = block(x_BTD, c, n)
    return weights


@EVERY
def test_what_is_attached_changes_no_output_and_no_model(name: str, variant: str | None) -> None:
    model = every_model(name, variant)
    inputs, tokens = inputs_of(model), some_tokens(T, batch=1)
    scheme, weights = model.scheme, set(model.state_dict())
    with torch.no_grad():
        alone = inputs.states(tokens)
        attention.of_heads(inputs, ProbeText(tokens, tokens, 0))
        bias.added(inputs, tokens)
        states = position.hidden_states(inputs, tokens)
    torch.testing.assert_close(states[-1:], alone, rtol=0, atol=2e-5)
    assert model.scheme is scheme
    assert set(model.state_dict()) == weights


@pytest.mark.parametrize(
    ("probe", "scheme", "reasons"),
    [
        ("shift_invariance", "learned_absolute", ["", "16 rows", "16 rows"]),
        ("receptive_field", "transformer_xl_recurrent", ["", "read in segments", "in segments"]),
        ("attention", "learned_absolute", ["", "16 rows", "16 rows"]),
        ("bias", "rope", ["no part adds to the logits by distance"]),
    ],
)
def test_what_a_scheme_lacks_is_skipped(probe: str, scheme: str, reasons: list[str]) -> None:
    [measured] = requested_probes([probe])
    rows = measured.rows(inputs_of(small_model(scheme)))
    for reason, row in zip(reasons, rows, strict=True):
        assert ("skipped" in row) == bool(reason)
        assert reason in row.get("skipped", "")


def test_text_that_does_not_serve_is_skipped_with_a_reason() -> None:
    [measured] = requested_probes(["attention"])
    rows = measured.rows(inputs_of(small_model("nope"), max_context=40))
    said = [row.get("skipped") for row in rows]
    assert said == [None, None, "endpoints lie 40 tokens deep in their documents"]
    [row] = position.Position().rows(inputs_of(small_model("nope"), documents=[0]))
    assert "one document" in row["skipped"]


@EVERY
def test_a_shift_is_seen_just_where_parts_claim_none(name: str, variant: str | None) -> None:
    model = copy.deepcopy(every_model(name, variant))
    with torch.no_grad():
        for parameter in model.scheme.parameters():
            parameter.mul_(0.5)  # the claim is about all values, as of a threshold below T
    rows = [row for row in ShiftInvariance().rows(inputs_of(model)) if "skipped" not in row]
    assert rows
    for row in rows:
        unchanged = abs(row["dnll"]) < 1e-4 and row["kl"] < 1e-4 and row["max_dlogit"] < 1e-3
        if is_shift_invariant(model.scheme):
            assert unchanged, row
    if not is_shift_invariant(model.scheme):
        assert max(row["max_dlogit"] for row in rows) > 1e-2


@pytest.mark.parametrize("depth", [64, 5])
def test_a_shift_of_a_table_is_the_table_read_further_on(depth: int) -> None:
    model = small_model("learned_absolute")
    inputs = inputs_of(model, max_context=depth)
    rows = ShiftInvariance().rows(inputs)
    [row] = [row for row in rows if row["k"] == 1]
    [(name, table)] = model.scheme.named_parameters()
    logits: list[Tensor] = []
    for moved in (0, 1):
        with torch.no_grad():
            dict(model.scheme.named_parameters())[name].copy_(table.roll(-moved, 0))
            tokens = torch.stack([tokens for tokens, _ in texts(inputs, min(T // 2, depth))])
            logits.append(model.logits(model(tokens)))
    targets = torch.stack([targets for _, targets in texts(inputs, min(T // 2, depth))])
    p_0, p_1 = (x.softmax(-1) for x in logits)
    nll_0, nll_1 = (-p.gather(-1, targets[..., None]).log() for p in (p_0, p_1))
    assert row["dnll"] == pytest.approx((nll_1 - nll_0).mean().item(), rel=1e-9)
    assert row["kl"] == pytest.approx((p_0 * (p_0 / p_1).log()).sum(-1).mean().item(), rel=1e-9)
    assert row["max_dlogit"] == pytest.approx((logits[1] - logits[0]).abs().max().item(), rel=1e-9)


def test_shares_are_those_of_finite_differences_of_every_embedding() -> None:
    model = small_model("rope")
    inputs = inputs_of(model, documents=[0])
    n = T // 2
    tokens = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))[:n]
    target, head = torch.tensor([7]), model.embedding.weight.clone()

    def loss() -> Tensor:
        return -(hidden(model, tokens[None])[0, -1] @ head.T).log_softmax(-1)[target]

    slow, step = torch.zeros(n, 32, dtype=torch.float64), 1e-5
    with torch.no_grad():
        for m in range(n):
            for d in range(32):  # each token stands once, so its row of the table is its embedding
                row = model.embedding.weight[tokens[m]]
                row[d] += step
                above = loss()
                row[d] -= 2 * step
                slow[m, d] = ((above - loss()) / (2 * step)).item()
                row[d] += step
    targets = torch.cat([torch.zeros(n - 1, dtype=torch.int64), target])
    got = receptive_field.shares(inputs, ProbeText(tokens[None], targets[None], 0))
    norms = slow.norm(dim=-1).flip(0).tolist()
    want = [sum(norms[: m + 1]) / sum(norms) for m in range(n)]
    assert got.tolist() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("width", [4, 8])
def test_a_window_lets_no_gradient_pass_beyond_layers_times_width(width: int) -> None:
    parts = f"{{window:{{width:{width / T},sinks:0}}}}"
    for row in receptive_field.ReceptiveField().rows(inputs_of(parts_model(parts))):
        reach = 2 * (width - 1) + 1
        shares = dict(zip(row["n"], row["c"], strict=True))
        assert row["erf_99"] <= reach <= 2 * width
        assert shares[reach] == pytest.approx(1, abs=1e-6)
        assert shares[width] < 1
        for key, share in (("erf_90", 0.9), ("erf_99", 0.99)):
            assert all((c >= share - 1e-6) == (n >= row[key]) for n, c in shares.items())


@pytest.mark.parametrize("name", ["rope", "alibi", "stick_breaking"])
def test_attention_is_measured_as_on_the_whole_matrix(name: str) -> None:
    model = small_model(name)
    inputs = inputs_of(model)
    for row in attention.Attention().rows(inputs):
        length = row["length"]
        want = {key: torch.zeros(2, 4, dtype=torch.float64) for key in attention.MEASURES}
        for tokens, _ in texts(inputs, length):
            for n, w_HTT in enumerate(dense_weights(model, tokens)):
                for h in range(4):
                    for i in range(length - 8, length):  # T/2 queries
                        w = w_HTT[h, i, : i + 1].tolist()
                        assert sum(w) == pytest.approx(1)
                        entropy = -sum(x * math.log(x) for x in w if x > 0)
                        far = sum(x * (i - j + 1) for j, x in enumerate(w))
                        want["distance"][n, h] += far / length / 16
                        want["entropy"][n, h] += entropy / 16
                        want["relative_entropy"][n, h] += entropy / math.log(i + 1) / 16
                        want["sink"][n, h] += sum(w[:4]) / 16
        for key, values in want.items():
            near(row[key], values)


def test_the_bias_of_slopes_falls_by_the_slope_at_every_distance() -> None:
    rows = bias.Bias().rows(inputs_of(small_model("alibi")))
    found = [(row["layer"], row["kind"], row["length"]) for row in rows]
    assert found == [(i, "bias", 4 * T) for i in (0, 1)]
    for row in rows:
        assert row["distances"][:4] == [0, 1, 2, 3]
        assert row["distances"][-1] == 4 * T - 1
        for h, head in enumerate(row["bias"]):
            slope = 2.0 ** (-2 * (h + 1))
            assert head == pytest.approx([-slope * d for d in row["distances"]], rel=1e-5)
            assert row["far_less_near"][h] == head[-1]


def own_first_layer(model: Transformer, tokens_T: Tensor) -> tuple[Tensor, Tensor]:
    """The first layer's normalised inputs [T, D], and its queries [H, T, K], without any part."""
    block = model.blocks[0]
    assert isinstance(block, Block)
    x_TD = block.attention_norm(model.embedding(tokens_T))
    q_TD, _, _ = block.qkv(x_TD).chunk(3, dim=-1)
    return x_TD, q_TD.unflatten(-1, (4, 8)).transpose(0, 1)


def test_a_bias_that_depends_on_content_is_the_mean_over_windows() -> None:
    model = small_model("fox")
    inputs = inputs_of(model)
    row, _ = bias.Bias().rows(inputs)
    want = torch.zeros(4, len(row["distances"]), dtype=torch.float64)
    for tokens, _ in texts(inputs, 4 * T):
        x_TD, _ = own_first_layer(model, tokens)
        w, b = (p[0] for p in model.scheme.parameters())
        gate = torch.nn.functional.logsigmoid(x_TD @ w.T + b)
        for n, d in enumerate(row["distances"]):
            want[:, n] += gate[4 * T - d :].sum(0) / 2
    near(row["bias"], want)


def test_rows_added_to_keys_count_as_their_mean_product_with_the_queries() -> None:
    model = small_model("shaw")
    inputs = inputs_of(model)
    row, _ = bias.Bias().rows(inputs)
    aK = next(p for name, p in model.scheme.named_parameters() if name.endswith("aK"))
    want = torch.zeros(4, len(row["distances"]), dtype=torch.float64)
    for tokens, _ in texts(inputs, 4 * T):
        _, q_HTK = own_first_layer(model, tokens)
        for n, d in enumerate(row["distances"]):
            products = q_HTK @ aK[0, min(d, aK.shape[1] - 1)] / math.sqrt(8)
            want[:, n] += products.mean(-1) / 2
    assert row["kind"] == "relative_keys"
    near(row["bias"], want)


def test_queries_for_relative_keys_have_what_is_added_to_them() -> None:
    model = small_model("transformer_xl")
    with torch.no_grad():
        for block in model.blocks:
            assert isinstance(block, Block)
            block.qkv.weight.zero_()  # q is 0, so that v alone meets the rows
    row, _ = bias.Bias().rows(inputs_of(model))
    named = dict(model.scheme.named_parameters())
    v, W_R = (next(p for n, p in named.items() if n.endswith(f".{key}")) for key in ("v", "W_R"))
    omega = 10000.0 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    theta_NM = torch.tensor(row["distances"])[:, None] * omega
    R_ND = torch.cat([theta_NM.sin(), theta_NM.cos()], dim=-1)
    r_HNK = torch.einsum("hkd,nd->hnk", W_R[0].reshape(4, 8, 32), R_ND)
    near(row["bias"], (r_HNK @ v.reshape(4, 8, 1))[..., 0] / math.sqrt(8))


@pytest.mark.slow
def test_absolute_positions_are_found_in_the_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "STEPS", 200)
    documents = range(8)
    # Amplitudes as at the start of training: words and positions equally.
    with_positions = parts_model("{sinusoidal:{base:100.0,layout:concat,scale:1.0}}")
    without = parts_model("{}")
    with_rows, nothing = (
        position.Position().rows(inputs_of(model, documents=documents))[0]
        for model in (with_positions, without)
    )
    assert with_rows["error"][0] < 0.1
    assert nothing["error"][0] > 0.22
    # Without knowledge the prediction is always T/2: 2 T too little on average from T to 4T.
    assert 1.8 < nothing["error_beyond"][0] < 2.2


def test_networks_are_tested_on_documents_not_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "STEPS", 10)
    model = small_model("nope", dtype=torch.float32)
    inputs = inputs_of(model, documents=[0, 1, 2])
    with torch.no_grad():
        x_NSD, y_S = position.samples(inputs, {2})
        windows = [*inputs.windows("", T, of_each=4)]
        states = [(x.document, position.hidden_states(inputs, x.inputs_BT)) for x in windows]
    predict = position.fitted(x_NSD, y_S, inputs)
    tested = [predict(x_NTD) for document, x_NTD in states if document == 2]
    [row] = position.Position().rows(inputs)
    near([p_T[:T] for p_T in row["predicted"]], torch.stack(tested).mean(0).detach().double())
    learned = torch.cat([x for document, x in states if document != 2], dim=1)
    places = torch.arange(1, T + 1).repeat(8) / T
    assert x_NSD.shape == learned.shape
    for x, y in zip(x_NSD[-1], y_S, strict=True):
        [at] = (learned[-1] == x).all(-1).nonzero()[:1, 0].tolist()
        assert places[at] == y


def test_predictions_go_beyond_T_where_values_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "STEPS", 10)
    for name, longest in (("nope", 4 * T), ("learned_absolute", T)):
        [row] = position.Position().rows(inputs_of(small_model(name, dtype=torch.float32)))
        assert row["length"] == longest
        assert (row["error_beyond"] is None) == (longest == T)
        assert row["positions"] == pytest.approx([(n + 1) / T for n in range(longest)])
        assert [len(of_layer) for of_layer in row["predicted"]] == [longest] * 3


def test_what_is_drawn_is_the_same_at_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "STEPS", 10)
    model = small_model("randomized_rope", dtype=torch.float32)
    inputs = inputs_of(model)
    for probe in requested_probes(["shift_invariance", "receptive_field", "attention", "position"]):
        assert probe.rows(inputs) == probe.rows(inputs)
