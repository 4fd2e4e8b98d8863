# pyright: reportGeneralTypeIssues=false
"""How much context a model uses, by models of which it is known."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tokenizers
import torch
from small import imported, plan_of, refusal, small_config
from small_corpora import load_tokens
from torch import Tensor
from trained import ALONE, QUIET, save_model, weights_of

import lengthgen
from lengthgen import pipeline
from lengthgen.context import key_tokens, lengths, retrieval
from lengthgen.context.lengths import Reach
from lengthgen.data.sources import source_of
from lengthgen.data.tokenizer import given_tokenizer
from lengthgen.data.windows import Span
from lengthgen.experiment import of_run
from lengthgen.files import read_rows
from lengthgen.report.load import load_rows
from lengthgen.report.series import select
from lengthgen.report.statistics import findings

V = 200
Given = Callable[[Tensor], Tensor]
DOCUMENTS = [*np.random.default_rng(0).integers(V, size=(10, 1000))]


def copier(W: int | None, *, n: int = 3) -> Given:
    """Returns a model that copies what stood, among the last W tokens, behind the same n tokens.

    Fewer where only fewer agree. None: among all tokens.
    """

    def logits(tokens_BT: Tensor) -> Tensor:
        B, T = tokens_BT.shape
        logits_BTV = torch.zeros(B, T, V)
        back = torch.arange(T)[:, None] - torch.arange(T)
        in_sight = (back >= 0) & (back < (W or T))
        for b in range(B):
            same = tokens_BT[b][:, None] == tokens_BT[b]
            agrees, longest = torch.ones(T, T, dtype=torch.bool), torch.zeros(T, T)
            for k in range(n):
                before = torch.zeros(T, T, dtype=torch.bool)
                before[k:, k + 1 :] = same[: T - k, : T - k - 1]
                agrees &= before
                longest += agrees
            score = torch.where(in_sight, (3 * longest) ** 2, 0)
            logits_BTV[b].scatter_add_(1, tokens_BT[b].expand(T, T), score)
        return logits_BTV

    return logits


def unigram(tokens_BT: Tensor) -> Tensor:
    return torch.linspace(0, 3, V).expand(*tokens_BT.shape, V)


def rows_of(model: Given, folder: Path, **how: Any) -> pd.DataFrame:
    """Returns the selected rows of a measurement."""
    few: dict[str, Any] = {"eval": {"endpoints": 10, "targets": 4}}
    lengthgen.measure(model, how.pop("documents", DOCUMENTS), report=folder, **few | how)
    (selection,) = select(load_rows([folder]))
    return selection.rows


def values(reached: Reach | None) -> tuple[int, int, int]:
    assert reached is not None
    return reached.value, reached.low, reached.high


@pytest.mark.parametrize("W", [60, 75])
def test_a_model_that_copies_from_W_tokens_has_the_length_W(W: int, tmp_path: Path) -> None:
    near = [W // 2, W - 1, W, W + 1]
    rows = rows_of(copier(W), tmp_path, lengths=near, protocols="forgetting")
    assert values(lengths.fine(rows, "model")) == (W, W, W)
    assert values(lengths.coarse(rows, "model"))[:2] == (W, W)
    rows = rows_of(copier(W), tmp_path, lengths=[W, 2 * W, 3 * W], protocols="retrieval")
    for form in retrieval.FORMS:
        reached = lengths.effective(rows, "model", form)
        assert reached is not None
        assert (reached.value, reached.low) == (W, W)


def test_the_share_that_an_effective_length_keeps_is_that_of_the_rows(tmp_path: Path) -> None:
    rows = rows_of(copier(None), tmp_path, lengths=[64, 128], protocols="retrieval")
    longer = rows["length"] == 128
    rows["hits"] = [
        [0.5 * x for x in h] if n else h for h, n in zip(rows["hits"], longer, strict=True)
    ]
    for share, longest in ((0.4, 128), (0.6, 64)):
        rows["config"] = json.dumps({"eval": {"effective": share}})
        assert values(lengths.effective(rows, "model", "single"))[0] == longest


def test_a_length_without_a_test_is_not_passed() -> None:
    passed, failed = (True, True, True), (False, False, False)
    assert lengths.reach({}) is None
    assert values(lengths.reach({64: passed})) == (64, 64, 64)
    assert values(lengths.reach({64: passed, 256: failed})) == (64, 64, 64)


def test_token_frequencies_alone_copy_and_find_nothing(tmp_path: Path) -> None:
    rows = rows_of(unigram, tmp_path, lengths=[64, 128], protocols=["forgetting", "retrieval"])
    copies = rows[rows["protocol"] == "forgetting"]
    assert (copies["score"] == 0).all()
    for reached in (lengths.fine(rows, "model"), lengths.coarse(rows, "model")):
        assert values(reached) == (0, 0, 0)
    for form in retrieval.FORMS:
        assert values(lengths.effective(rows, "model", form)) == (0, 0, 0)


def test_a_model_that_sees_all_finds_every_value_at_every_depth(tmp_path: Path) -> None:
    rows = rows_of(copier(None), tmp_path, lengths=[64, 256], protocols="retrieval")
    for name in ("hits", "exact"):
        for length, own in rows.groupby("length"):
            found, tries = (np.sum([*own[key]], axis=0) for key in (name, "tries"))
            assert (tries > 0).all(), length
            assert (found == tries).all(), (name, length)


def test_retrieval_asks_for_what_stands_in_the_text_and_for_nothing_else(tmp_path: Path) -> None:
    config = small_config("eval.lengths=[120]", "eval.max_context=120")
    corpus = load_tokens(config.corpus, cache_dir=tmp_path, say=print)
    planned = plan_of(config, corpus)
    (document, end), *_ = planned.endpoints
    n_key = retrieval.key_length(planned)
    made = retrieval.examples(Span(document, end, 120, 13), planned)
    for form, example in zip(retrieval.FORMS, made, strict=True):
        tokens = example.tokens_T.tolist()
        assert len(tokens) == 120, form
        for query in example.queries:
            key = tokens[query.place - n_key + 1 : query.place + 1]
            behind = [
                tokens[i + n_key]
                for i in range(query.place + 1 - 2 * n_key)
                if tokens[i : i + n_key] == key
            ]
            assert query.asked[0] in behind, form
        if form in ("single", "keys"):  # in the prose that stands before a pair
            size, begin = n_key + 1, len(corpus.beginning)
            n = 120 + 1 - begin - 2 * len(example.queries) * size
            for i, query in enumerate(sorted(example.queries, key=lambda query: query.depth)):
                key = tokens[query.place - n_key + 1 : query.place + 1]
                (at, *_) = (k for k in range(120) if tokens[k : k + n_key] == key)
                assert at - begin - i * size == round(retrieval.DEPTHS[query.depth] * n), form


def test_key_tokens_are_those_of_the_published_rule() -> None:
    truncated = np.array([5.0, 5.0, 3.9, 4.1, 9.0])
    full = np.array([1.0, 3.1, 1.9, 2.0, 1.99])
    # saved: 4.0, 1.9, 2.0, 2.1, 7.01; the gain is to exceed 2, the full loss to be below 2
    assert key_tokens.is_key(truncated, full).tolist() == [True, False, False, False, True]


def test_key_tokens_and_their_loss_are_those_that_one_computes_by_hand(tmp_path: Path) -> None:
    """Tokens 0 and 2 are likely from the 56th token of a window on, 1 and 3 up to there."""

    def logits(tokens_BT: Tensor) -> Tensor:
        known = (torch.arange(tokens_BT.shape[1]) >= 55)[:, None]
        even = torch.arange(4) % 2 == 0
        return torch.where(known == even, 0.45, 0.05).log().expand(len(tokens_BT), -1, -1)

    documents = [np.arange(i, i + 400) % 4 for i in range(10)]  # 4 targets, each token once
    how: Any = {"lengths": [32, 64], "train_length": 64, "protocols": "key_tokens"}
    rows = rows_of(logits, tmp_path, documents=documents, **how)
    assert (rows["n_tokens"] == 4).all()
    assert (rows["n_scores"] == 2).all()
    for length, p in ((32, 0.05), (64, 0.45)):
        own = rows[rows["length"] == length]
        np.testing.assert_allclose(own["score"], -2 * math.log(p), rtol=1e-6)
        np.testing.assert_allclose(own["nats"], -2 * math.log(0.05 * 0.45), rtol=1e-6)


def test_an_evaluator_chooses_the_tokens_and_has_to_share_the_tokenizer(
    run_dir: Path, finished: Callable[..., Path]
) -> None:
    other, weights = shutil.copytree(run_dir, run_dir.with_name("other")), weights_of(run_dir)
    run = of_run(run_dir)
    model = run.build(vocab_size=len(weights["embedding.weight"]))
    noise = torch.Generator().manual_seed(3)  # after which a few tokens need T
    for name, weight in weights.items():
        model.state_dict()[name].copy_(weight + 0.4 * torch.randn(weight.shape, generator=noise))
    save_model(other, model, run.config, step=8)

    def chosen(where: Path, evaluator: str | None) -> list[tuple[float, float]]:
        given: Any = {"eval.protocols": ["key_tokens"], "eval.lengths": [16]}
        given |= {"eval.evaluator": evaluator, "eval.targets": 16, "eval.endpoints": 16}
        rows = pipeline.evaluate(of_run(run_dir, given), where, ranks=ALONE, show=QUIET)
        return [(row["n_scores"], row["nats"]) for row in rows]

    by_itself, by_other = chosen(run_dir, None), chosen(run_dir, "other")
    assert sum(n for n, _ in by_other) > 0
    assert by_itself != by_other
    assert [n for n, _ in by_other] == [n for n, _ in chosen(other, None)]
    assert [nats for _, nats in by_other] == [nats for _, nats in by_itself]
    assert "no such run" in refusal(chosen, run_dir, "nobody")
    (stranger,) = finished("scheme=rope", "corpus.tokenizer=bpe", "corpus.vocab_size=280").glob(
        "*-*-*"
    )
    assert "another tokenizer" in refusal(chosen, run_dir, str(stranger))


def test_intervals_of_scores_hold_what_a_score_can_be(tmp_path: Path) -> None:
    how: Any = {"documents": DOCUMENTS[:3], "protocols": ["retrieval", "forgetting"]}
    rows = findings(rows_of(copier(None), tmp_path, lengths=[64], **how))
    scores = rows.loc[rows["quantity"] == "score"].set_index("protocol")
    low, high = scores["low"], scores["high"]
    assert 0 < low["retrieval"] < 1  # all are right, but 3 documents show no more than that
    assert high["retrieval"] == 1
    assert -1 <= low["forgetting"] <= high["forgetting"] <= 1


def test_a_forgetting_curve_that_ends_before_T_is_drawn(tmp_path: Path) -> None:
    rows_of(unigram, tmp_path, lengths=[64], train_length=512, protocols="forgetting")
    assert (tmp_path / "forgetting.svg").is_file()


def test_bits_per_byte_are_those_of_the_text_that_is_scored() -> None:
    config = small_config("corpus.tokenizer=bytes")
    tokenizer = given_tokenizer(config.corpus, source_of(config.corpus)[0])
    assert tokenizer is not None
    text = "na\u00efve caf\u00e9, \u4f60\u597d. " * 40
    V = tokenizer.get_vocab_size()
    curve = lengthgen.measure(
        lambda tokens_BT: torch.zeros(*tokens_BT.shape, V),
        [text, text[3:]],
        lengths=[64, 128],
        tokenizer=tokenizer,
        protocols=["tail", "nonoverlap"],
    )
    n_bytes = len(text.encode())
    n_tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    want = math.log2(V) * n_tokens / n_bytes
    assert curve["bits_per_byte"].to_numpy() == pytest.approx(want, rel=1e-6)


def test_every_window_is_read_once(tmp_path: Path) -> None:
    n_read = 0

    def logits(tokens_BT: Tensor) -> Tensor:
        nonlocal n_read
        n_read += tokens_BT.numel()
        return unigram(tokens_BT)

    how: Any = {"lengths": [64], "eval": {"endpoints": 10, "targets": 4}}
    lengthgen.measure(logits, DOCUMENTS, **how)
    assert n_read == 10 * 4 * 64  # at C = 64 a window scores a single target
    n_read = 0
    lengthgen.measure(logits, DOCUMENTS, protocols="forgetting", **how)
    assert n_read == 10 * 2 * (2 * 64 - 1)
    how |= {"lengths": [16, 128]}  # T/8, and T, if T is not given
    alone = lengthgen.measure(logits, DOCUMENTS, protocols="key_tokens", **how)
    n_read = 0
    lengthgen.measure(logits, DOCUMENTS, **how)
    n_tail, n_read = n_read, 0
    both = lengthgen.measure(logits, DOCUMENTS, protocols=["tail", "key_tokens"], **how)
    assert n_read == n_tail
    own = both.loc[both["protocol"] == "key_tokens"].reset_index(drop=True)
    pd.testing.assert_frame_equal(own, alone.reset_index(drop=True))


def test_a_measurement_is_refused_in_one_line() -> None:
    short = refusal(lengthgen.measure, unigram, DOCUMENTS, lengths=[64, 4096])
    assert "eval.lengths=[64]" in short
    assert "tokenizer" in refusal(lengthgen.measure, unigram, ["a text"], lengths=[64])
    assert "eval.lengths" in refusal(lengthgen.measure, unigram, DOCUMENTS, lengths=[])
    beyond = refusal(lengthgen.measure, unigram, DOCUMENTS, lengths=[64], bos_id=V)
    assert "[B, T, V]" in beyond

    def shorter(tokens_BT: Tensor) -> Tensor:
        return unigram(tokens_BT)[:, 1:]

    def none(tokens_BT: Tensor) -> None:
        return None

    def few(tokens_BT: Tensor) -> Tensor:
        return unigram(tokens_BT)[..., : V // 2]

    for wrong in (shorter, none, few):
        assert "[B, T, V]" in refusal(lengthgen.measure, wrong, DOCUMENTS, lengths=[64])
    padded = [[*document, -100] for document in DOCUMENTS]
    for unread in ([], [[]], "a text", DOCUMENTS[0], [None], padded):
        said = refusal(lengthgen.measure, unigram, unread, lengths=[64], tokenizer=words())
        assert said.startswith("measure: documents: ")
    with_dropout = torch.nn.Dropout().train()
    assert "eval()" in refusal(lengthgen.measure, with_dropout, DOCUMENTS, lengths=[64])


def words() -> tokenizers.Tokenizer:
    """Words of a letter, of which the tokenizer does not know the bytes of text."""
    model = tokenizers.models.WordLevel({chr(97 + i): i for i in range(26)}, unk_token="z")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    return made


def test_a_measurement_reads_all_of_the_documents_and_nothing_else() -> None:
    texts = ["".join(chr(97 + i % 7) for i in document) for document in DOCUMENTS]
    how: Any = {"lengths": [64], "eval": {"endpoints": 4, "targets": 4}}
    plain = lengthgen.measure(unigram, texts, tokenizer=words(), **how)
    assert plain["bits_per_byte"].isna().all()
    cut, padded = words(), words()
    cut.enable_truncation(70)
    padded.enable_padding(length=4096)
    transformers: Any = imported("transformers")
    of_hub = transformers.PreTrainedTokenizerFast(tokenizer_object=words())
    for tokenizer in (cut, padded, of_hub):
        curve = lengthgen.measure(unigram, iter(texts), tokenizer=tokenizer, **how)
        pd.testing.assert_frame_equal(curve, plain)
    curve = lengthgen.measure(lambda x: unigram(x).numpy(), texts, tokenizer=words(), **how)
    pd.testing.assert_frame_equal(curve, plain)


def test_a_run_is_measured_cell_by_cell_and_other_lengths_change_none(run_dir: Path) -> None:
    log, protocols = run_dir / "eval.jsonl", ["forgetting", "key_tokens"]

    def evaluate(*at: int) -> None:
        asked = of_run(run_dir, {"eval.lengths": [*at], "eval.protocols": protocols})
        pipeline.evaluate(asked, run_dir, ranks=ALONE, show=QUIET)

    evaluate(16, 32)
    before = log.read_text()
    evaluate(16, 32, 64)
    after = log.read_text()
    assert after.startswith(before)
    added = read_rows(log)[before.count("\n") :]
    assert {row["length"] for row in added} == {64}
    assert {row["protocol"] for row in added} == {*protocols}
