"""Each protocol scores the tokens it says, the same ones at every length and world size."""

import io
import itertools
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import create, experiment_of, plan_of, refusal, small_config
from small_corpora import load_tokens
from trained import (
    ALONE,
    QUIET,
    evaluate,
    open_run,
    rows_of,
    save_model,
    train_and_evaluate,
    with_eval,
)

import lengthgen
from lengthgen.config.schema import Config
from lengthgen.data import corpora
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.windows import Span
from lengthgen.errors import UserError
from lengthgen.evaluation import evaluator, scoring
from lengthgen.evaluation import plan as plans
from lengthgen.evaluation.protocols import PROTOCOLS, Cell, Evaluation, cells_of
from lengthgen.evaluation.stored import loss
from lengthgen.files import write_rows
from lengthgen.report import report
from lengthgen.runs import directory, status
from lengthgen.terminal import Progress


def test_the_shortest_length_is_first_and_references_follow_the_headline_from_t_on() -> None:
    asked = "eval.lengths=[64,8,24,16]", "eval.reference_variants=[window]"
    config = small_config(*asked, "eval.protocols=[tail,swap,per_position]")
    tail = [("tail", v, n) for n in (8, 16, 24, 64) for v in (None, "window") if v is None or n > 8]
    swap = [("swap", None, 24), ("swap", None, 64)]  # beyond T
    listed = cells_of(config, experiment_of(config).protocols)
    names = [(cell.protocol.name, cell.variant, cell.length) for cell in listed]
    assert names == [*tail, *swap, ("per_position", None, 64)]


@pytest.mark.parametrize(
    ("lengths", "wanted", "depth"),
    [
        *(([16, 32], 64, 64), ([16, 128], 64, 128), ([16, 550], 16384, 550)),
        *(([16], 16384, 512), ([8, 100, 512], 16384, 512)),  # 32 T, and documents of 600 tokens
    ],
)
def test_endpoints_lie_as_deep_as_documents_allow_and_elsewhere_than_at_reach_it_is_said(
    corpus: TokenizedCorpus, lengths: list[int], wanted: int, depth: int
) -> None:
    config = small_config(f"eval.lengths={lengths}", f"eval.max_context={wanted}")
    planned = plan_of(config, corpus)
    assert planned.max_context == depth
    said = [line for line in plans.messages(config, planned) if "deep" in line]
    assert len(said) == (depth != wanted)
    assert all(f"{depth} tokens deep, not the {wanted:,} of eval." in line for line in said)


@pytest.mark.parametrize(
    "requested",
    [
        ["eval.lengths=[16,32,1000]"],
        ["eval.lengths=[512,1024]", "eval.targets=512"],
        ["train.length=1024", "train.batch_tokens=1024", "eval.lengths=[4096]", "eval.targets=999"],
        ["train.length=1000", "train.batch_tokens=3000", "eval.lengths=[500,2000]"],
        ["train.length=700", "train.batch_tokens=700"],
    ],
)
def test_documents_that_are_too_short_are_one_error_whose_remedy_works(
    corpus: TokenizedCorpus, requested: list[str]
) -> None:
    requested = [*requested, "eval.max_context=16384"]
    said = refusal(plan_of, small_config(*requested), corpus)
    remedy = re.search(r"; try (.*?)(,? or| \(|$)", said)
    assert remedy is not None
    plan_of(small_config(*requested, *remedy[1].split()), corpus)


@pytest.fixture
def run(own: Callable[..., Path], cache: Path) -> tuple[Config, Path]:
    """A trained run of one's own to change."""
    words = "scheme=learned_absolute", f"runtime.cache={cache}"
    run_dir = own(*words)
    return small_config(*words, f"runtime.root={run_dir.parent}"), run_dir


ALIKE: Any = {"precision": "fp32", "ranks": ALONE}


def total_nats(opened: Evaluation, spans: Sequence[Span], **how: Any) -> float:
    scored = scoring.score(opened.model, spans, opened.plan.corpus, **ALIKE, **how)
    return math.fsum(itertools.chain(*scored.values()))


def test_only_missing_cells_are_computed(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    before = rows_of(run_dir / "eval.jsonl")
    evaluate(config, run_dir)
    assert rows_of(run_dir / "eval.jsonl") == before
    evaluate(with_eval(config, lengths=[8, 16]), run_dir)
    added = rows_of(run_dir / "eval.jsonl")[len(before) :]
    assert {row["length"] for row in added} == {8}
    assert {row["endpoints"] for row in rows_of(run_dir / "eval.jsonl")} == {before[0]["endpoints"]}


def test_what_is_measured_in_bf16_is_rounded_and_stands_apart(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    evaluate(with_eval(config, precision="bf16"), run_dir)
    rows = [row for row in rows_of(run_dir / "eval.jsonl") if row["length"] == 16]
    exact, rounded = (loss([r for r in rows if r["precision"] == p]) for p in ("fp32", "bf16"))
    assert exact != pytest.approx(rounded, rel=1e-6)
    assert exact == pytest.approx(rounded, rel=1e-2)


def test_a_variant_that_was_redefined_is_computed_again(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    losses: set[float | None] = set()
    for beyond in ("clamp", "wrap"):
        variants = {"mine": {"learned_absolute": {"beyond": beyond}}}
        redefined = with_eval(config.model_copy(update={"variants": variants}), variants=["mine"])
        rows = evaluate(redefined, run_dir)
        losses.add(loss([row for row in rows if (row["variant"], row["length"]) == ("mine", 64)]))
    assert len(losses - {None}) == 2


# No schedule ends with the run, and a variant is scored last.
CONSTANT = ["train.min_lr_ratio=1.0", "train.warmup_fraction=0.0", "eval.variants=[ntk]"]


@pytest.fixture
def keeping(own: Callable[..., Path], cache: Path) -> tuple[Config, Path]:
    """A run that has taken 8 steps, and keeps the weights after 1, 2 and 4 of 128 tokens."""
    words = "scheme=rope", "train.keep_checkpoints=4", f"runtime.cache={cache}", *CONSTANT
    run_dir = own(*words)
    return small_config(*words, f"runtime.root={run_dir.parent}"), run_dir


def test_a_kept_checkpoint_is_scored_as_a_run_that_ends_there(
    keeping: tuple[Config, Path], finished: Callable[..., Path], cache: Path
) -> None:
    config, run_dir = keeping
    evaluate(config, run_dir, kept=[125, 500])
    root = finished("scheme=rope", f"runtime.cache={cache}", *CONSTANT, "train.tokens=512")
    (ended,) = root.glob("rope-*")
    named = {"run": "", "weights": ""}  # which differ
    kept, wanted = (
        [row | named for row in rows_of(log) if row["tokens_seen"] == 512]
        for log in (run_dir / "kept.jsonl", ended / "eval.jsonl")
    )
    assert kept == wanted
    assert kept


def test_kept_checkpoints_stand_apart_and_are_computed_once(keeping: tuple[Config, Path]) -> None:
    config, run_dir = keeping
    before, log = report.terminal([run_dir]), run_dir / "kept.jsonl"
    small = with_eval(config, lengths=[16])
    evaluate(small, run_dir, kept=[256])
    first = rows_of(log)
    every = evaluate(config, run_dir, kept="all")
    assert rows_of(log)[: len(first)] == first
    assert {row["tokens_seen"] for row in first} == {256}
    keys = ("tokens_seen", "variant", "length", "document")
    assert len({tuple(row[key] for key in keys) for row in every}) == len(every)
    assert {row["tokens_seen"] for row in every} == {128, 256, 512, 1024}
    size = log.stat().st_size
    evaluate(config, run_dir, kept="all")
    assert log.stat().st_size == size
    assert report.terminal([run_dir]) == before
    key = ["variant", "length"]
    losses: Any = lengthgen.results(run_dir, checkpoints=True).set_index(["tokens", *key])["loss"]
    last: Any = lengthgen.results(run_dir).set_index(key)["loss"]
    assert losses[1024].equals(last)
    assert len(losses) == 4 * len(last)
    write_rows(log, [row | {"weights": "0" * 64} for row in rows_of(log)])  # of a twin
    assert set(lengthgen.results(run_dir, checkpoints=True)["tokens"]) == {1024}


def test_without_such_a_checkpoint_nothing_is_evaluated(
    keeping: tuple[Config, Path],
) -> None:
    evaluated = partial(evaluate, *keeping)
    assert "of 128, 256, 512" in refusal(evaluated, kept=[700])
    shutil.rmtree(keeping[1] / "kept")
    assert "train.keep_checkpoints" in refusal(evaluated, kept="all")
    assert not (keeping[1] / "kept.jsonl").exists()


def test_positions_are_drawn_from_the_seed_of_the_run(tmp_path: Path, cache: Path) -> None:
    words = ["scheme=randomized_rope", "eval.protocols=[kerple]", "train.tokens=256", "seed=3"]
    config = small_config(*words, f"runtime.root={tmp_path}", f"runtime.cache={cache}")
    run_dir = train_and_evaluate(config)
    rows = [row for row in rows_of(run_dir / "eval.jsonl") if row["length"] == 64]
    opened = open_run(config, run_dir)
    spans = Cell(PROTOCOLS["kerple"], None, 64).windows(opened.plan)
    nats = [total_nats(opened, spans, seed=seed) for seed in (3, 0)]
    assert math.fsum(row["nats"] for row in rows) == pytest.approx(nats[0], rel=1e-9)
    assert abs(nats[0] - nats[1]) > 1e-3


def test_a_swap_is_the_mean_over_texts_of_three_documents(tmp_path: Path, cache: Path) -> None:
    words = ["eval.protocols=[swap]", "eval.lengths=[64]", "eval.endpoints=9", "train.tokens=256"]
    words += ["corpus.documents=60", f"runtime.root={tmp_path}", f"runtime.cache={cache}"]
    config = small_config(*words)
    run_dir = train_and_evaluate(config)
    opened = open_run(config, run_dir)
    spans = Cell(PROTOCOLS["swap"], None, 64).windows(opened.plan)
    texts = evaluator.replacements(PROTOCOLS["swap"], opened.plan, seed=0)
    nats = [total_nats(opened, spans, seed=0, replace=text) for text in texts]
    assert len({*nats}) == 3
    mean = math.fsum(row["nats"] for row in rows_of(run_dir / "eval.jsonl"))
    assert mean == pytest.approx(sum(nats) / 3, rel=1e-9)


def test_two_evaluations_of_one_run_cannot_write_at_once(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    whole = (run_dir / "eval.jsonl").read_bytes()
    with status.run_lock(run_dir, "eval"):
        evaluate(config, run_dir)  # which has nothing to write
        (run_dir / "eval.jsonl").unlink()
        with pytest.raises(UserError, match=r"another process is at work on this run \(eval\)"):
            evaluate(config, run_dir)
    evaluate(config, run_dir)
    assert (run_dir / "eval.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    ("scale", "kind", "n"),
    [(math.nan, "NaN", 2), (8e37, "infinite", 1)],  # 8e37: fp32 holds logits, not all differences
)
def test_a_loss_that_is_not_finite_is_named_kept_and_shown_as_infinite(
    run: tuple[Config, Path], corpus: TokenizedCorpus, scale: float, kind: str, n: int
) -> None:
    config, run_dir = run
    model = create(config, vocab_size=corpus.vocab_size)
    with torch.no_grad():
        next(model.norm.parameters()).fill_(scale)
    save_model(run_dir, model, config, step=9)
    show = Progress(is_main=True, file=(screen := io.StringIO()))
    rows = evaluate(config, run_dir, ranks=ALONE, show=show)
    assert f"tail 16: the loss is {kind} in {n} of 2 documents\n" in screen.getvalue()
    assert [row["nats"] for row in rows].count(None) == n
    assert loss([row for row in rows if row["length"] == 16]) == math.inf
    assert "inf" in report.terminal([run_dir])


def test_nonoverlap_refuses_lengths_that_would_score_other_tokens(corpus: TokenizedCorpus) -> None:
    config = small_config("eval.lengths=[16,24]", "eval.protocols=[nonoverlap]")
    with pytest.raises(UserError, match=r"24 does not divide the 64 tokens"):
        plan_of(config, corpus)
    plan_of(small_config("eval.lengths=[16,24]"), corpus)


def test_packed_text_has_a_row_for_each_endpoint(tmp_path: Path, cache: Path) -> None:
    config = small_config(
        *("corpus.packed=true", "eval.endpoints=7", "eval.protocols=[tail,swap,nonoverlap]"),
        *(f"runtime.root={tmp_path}", f"runtime.cache={cache}"),
    )
    corpus = load_tokens(config.corpus, cache_dir=cache, say=QUIET.say)
    planned = plan_of(config, corpus)
    ends = sorted(end for _, end in planned.endpoints)
    assert len(ends) == 7
    assert min(b - a for a, b in itertools.pairwise([0, *ends])) >= planned.max_context == 64
    every = rows_of(train_and_evaluate(config) / "eval.jsonl")
    for protocol in config.eval.protocols:
        rows = [row for row in every if row["protocol"] == protocol and row["length"] == 64]
        assert len({row["document"] for row in rows}) == len(rows) == rows[0]["n_documents"] == 7


def test_a_scheme_that_cannot_take_a_reference_variant_says_why(run: tuple[Config, Path]) -> None:
    config, run_dir = run
    config = with_eval(config, reference_variants=["ntk"], lengths=[16])  # nothing rotates here
    evaluate(config, run_dir)
    [row] = [row for row in rows_of(run_dir / "eval.jsonl") if row["variant"] == "ntk"]
    assert "ntk acts on rotated queries and keys" in row["skipped"]
    before = rows_of(run_dir / "eval.jsonl")
    evaluate(config, run_dir)
    assert rows_of(run_dir / "eval.jsonl") == before


def test_what_a_killed_evaluation_left_changes_no_bit(tmp_path: Path, cache: Path) -> None:
    """Lengths of nonoverlap share forward passes; after a kill only some of them are missing."""
    protocols = "eval.protocols=[tail,nonoverlap,fox,per_position]"
    config = small_config(f"runtime.root={tmp_path}", f"runtime.cache={cache}", protocols)
    log = train_and_evaluate(config) / "eval.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    whole = set(lines)
    for kept in range(0, len(lines), 7):
        log.write_text("".join(lines[:kept]) + lines[kept][:30])
        evaluate(config, log.parent)
        assert set(log.read_text().splitlines(keepends=True)) == whole


def test_a_kill_loses_one_long_window_at_most(tmp_path: Path, cache: Path) -> None:
    """Of three windows that alone fill a forward pass, the third is never scored at first."""
    texts = ["corpus.documents=30", "corpus.document_words=4500", "eval.max_context=4200"]
    config = small_config(f"runtime.root={tmp_path}", f"runtime.cache={cache}", *texts)
    config = with_eval(config, lengths=[16, 4200], endpoints=3, endpoints_per_document=1)
    run_dir = train_and_evaluate(config)
    log = run_dir / "eval.jsonl"
    whole = log.read_text().splitlines(keepends=True)
    log.write_text("".join(whole[:3]))  # the three of length 16

    class Killed(Progress):
        def advance(self, amount: int, **fields: float | str) -> None:
            if len(log.read_text().splitlines()) == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(config, run_dir, ranks=ALONE, show=Killed(is_main=False))
    assert log.read_text().splitlines(keepends=True) == whole[:5]
    before = log.stat().st_size
    evaluate(config, run_dir)
    assert log.read_text()[:before] == "".join(whole[:5])
    assert log.read_text().splitlines(keepends=True) == whole


def test_code_that_was_edited_since_is_named(run: tuple[Config, Path]) -> None:
    config, run_dir = run

    def said() -> str:
        out = io.StringIO()
        with Progress(is_main=True, file=out) as show:
            evaluate(config, run_dir, ranks=ALONE, show=show)
        return out.getvalue()

    assert "has changed" not in said()
    begun = directory.read_provenance(run_dir, run=config.run_id)
    write_rows(run_dir / "env.json", [begun | {"code": {"learned_absolute": "0" * 12}}])
    assert "code of scheme.parts.learned_absolute has changed" in " ".join(said().split())


def test_the_headline_is_the_same_whatever_else_is_scored(tmp_path: Path, cache: Path) -> None:
    config = small_config(f"runtime.root={tmp_path}", f"runtime.cache={cache}")
    run_dir = train_and_evaluate(config)
    names = ["tail", "sliding-8", "yarn", "nonoverlap", "fox"]
    runs = []
    for together in ([[name] for name in names], [names]):
        (run_dir / "eval.jsonl").unlink(missing_ok=True)
        for asked in together:
            evaluate(with_eval(config, protocols=asked), run_dir)
        rows = rows_of(run_dir / "eval.jsonl")
        runs.append({(r["protocol"], r["length"], r["document"]): r["nats"] for r in rows})
    alone, shared = runs
    assert alone.keys() == shared.keys()
    for key, nats in alone.items():
        exact = key[0] == "tail"  # the others share forward passes
        assert shared[key] == (nats if exact else pytest.approx(nats, rel=1e-5))


def test_targets_that_training_has_seen_are_not_scored(corpus: TokenizedCorpus) -> None:
    config = small_config("eval.endpoints=6", "eval.endpoints_per_document=10")
    clean = plan_of(config, corpus)
    assert clean.repeated == 0
    [leaked, *_] = clean.endpoints
    held_out = corpus.validation.document(leaked.document)
    seen = corpora.Split(
        tokens=np.concatenate([corpus.train.tokens, held_out]).astype(np.uint32),
        offsets=np.append(corpus.train.offsets, corpus.train.offsets[-1] + len(held_out)),
        names=[*corpus.train.names, "leaked"],
        groups=[*corpus.train.groups, "leaked"],
    )
    leaky = replace(corpus, train=seen, fingerprint="1" * 64)
    planned = plan_of(config, leaky)
    assert leaked.document not in {e.document for e in planned.endpoints}
    assert len(planned.endpoints) == 6
    assert 0.1 < planned.repeated < 1
    message = f"not scored: the {planned.repeated:.1%} of validation tokens in sequences of "
    assert any(line.startswith(message) for line in plans.messages(config, planned))
    with pytest.raises(UserError, match="the training split has tokens of every span of"):
        plan_of(config, replace(leaky, validation=seen, train=seen, fingerprint="2" * 64))
