"""The audit of a run or of a folder: one sentence, one page, and what stops it."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from commands import here
from small import imported
from trained import evaluate, with_eval

from lengthgen import experiment
from lengthgen.context import audit
from lengthgen.evaluation.protocols import TimeLimit
from lengthgen.files import read_rows


def test_an_audit_says_how_far_and_a_second_one_measures_nothing(run_dir: Path) -> None:
    words = "audit", str(run_dir), "--lengths", "16,32", "--variants", "yarn", "eval.effective=0.5"
    first = here(*words)
    assert first.code == 0, first.err
    said = first.out.splitlines()
    assert said[0].startswith("rope: T is 16 tokens; perplexity holds to ")
    assert said[1].startswith("rope + yarn: ")
    assert (run_dir / "audit/report.html").is_file()
    of_page = pd.read_parquet(run_dir / "audit/rows.parquet")["config"]
    assert {json.loads(config)["eval"]["effective"] for config in of_page} == {0.5}
    protocols = {row["protocol"] for row in read_rows(run_dir / "eval.jsonl")}
    assert {"tail", "forgetting", "key_tokens", "nonoverlap"} <= protocols
    before = (run_dir / "eval.jsonl").read_bytes()
    assert here(*words).out == first.out
    assert (run_dir / "eval.jsonl").read_bytes() == before


def test_limited_seconds_give_the_cheapest_cell_and_the_rest_later(run_dir: Path) -> None:
    log, run = run_dir / "eval.jsonl", experiment.config_of(run_dir, {})
    config = with_eval(run, lengths=[16, 32], protocols=["forgetting", "tail"])
    log.unlink()
    whole = evaluate(config, run_dir)
    log.unlink()
    evaluate(config, run_dir, limit=TimeLimit(end=0))
    ((_, length),) = {(row["protocol"], row["length"]) for row in read_rows(log)}
    assert length == 16
    assert evaluate(config, run_dir) == whole


def test_without_time_an_audit_measures_one_thing_and_names_all_else(run_dir: Path) -> None:
    log, said = run_dir / "eval.jsonl", list[str]()
    log.unlink()
    given: Any = {"lengths": ["16", "32"], "variants": [], "out": None, "say": said.append}
    audit.audit(run_dir, {}, minutes=0, **given)
    measured = [row for row in read_rows(log) if row["document"]]
    assert len({(row["protocol"], row["length"]) for row in measured}) == 1
    for name in ("nonoverlap 16", "nonoverlap 32", "sliding-8 16", "sliding-8 32"):
        assert name in said[-1]
    audit.audit(run_dir, {}, minutes=None, **given)
    assert {"tail", "nonoverlap", "sliding-8"} <= {row["protocol"] for row in read_rows(log)}
    assert len(said) == 1


def test_a_model_without_a_tokenizer_and_a_name_of_nothing_are_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    transformers: Any = imported("transformers")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    given = {**shape, "intermediate_size": 32, "vocab_size": 300, "max_position_embeddings": 32}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**given)).save_pretrained(folder)
    root = f"runtime.root={tmp_path}"
    assert "no tokenizer.json" in here("audit", str(folder), root).error
    assert "no such run" in here("audit", "nothing", root).error
    assert "one model" in here("audit").error


def test_a_run_is_not_measured_on_another_corpus_than_is_asked_for(run_dir: Path) -> None:
    assert here("audit", str(run_dir), "corpus=stdlib").error.startswith("corpus: only eval.* and")


def test_lengths_that_no_document_has_are_refused_with_those_that_fit(run_dir: Path) -> None:
    assert "eval.lengths=[16]" in here("audit", str(run_dir), "--lengths", "16,100000").error
