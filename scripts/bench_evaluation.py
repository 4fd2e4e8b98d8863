"""Times the scoring of trained runs beside bare forward passes over the same windows.

python scripts/bench_evaluation.py RUN_DIR [RUN_DIR ...] [--rounds N]

tail s        the matched tail of all lengths of the run's configuration
/ last_k      this over one window per endpoint at T and each length beyond: what a curve costs
              that does not look below T, and whose targets at T see fewer than T tokens
/ forward     this over one forward pass of every window that gives its last state alone: the least
              that any evaluation of these windows costs
apart/shared  nonoverlap in four documents, each length on its own, over lengths that share passes
max d         the largest difference of a token's nats between these two
Medians over rounds in which all ways take turns; ratios compare within a round.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch

from lengthgen.config.schema import from_plain, to_plain
from lengthgen.data.spans import Span
from lengthgen.evaluation import evaluator, plan, scoring
from lengthgen.evaluation.scored_text import Cell, Plan, Scored
from lengthgen.model.transformer import Transformer
from lengthgen.runs import directory
from lengthgen.runs.distributed import ALONE
from lengthgen.terminal import Progress

DOCUMENTS = 4  # of nonoverlap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print("| run | tail s | / last_k | / forward | shared s | apart/shared | max d |", flush=True)
    print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    for run_dir in asked.runs:
        print(measured(run_dir, rounds=asked.rounds), flush=True)


def measured(run_dir: Path, *, rounds: int) -> str:
    plain = to_plain(directory.load_config(run_dir))
    plain["runtime"] |= {"root": str(run_dir.parent), "device": "cpu"}
    config = from_plain(plain)
    opened = evaluator.open_run(config, run_dir, ranks=ALONE, show=Progress(is_main=False))
    model = evaluator.trained_model(config, opened)
    planned, lengths = opened.planned, config.eval.lengths
    tail = [span for n in lengths for span in plan.windows(Cell("tail", None, n), planned)]
    beyond = [n for n in lengths if n >= config.train.length]
    single = [span for n in beyond for span in plan.windows(Cell("last_k", None, n), planned)]
    kept = {end.document for end in planned.text.segments[:DOCUMENTS]}
    each = [
        [s for s in plan.windows(Cell("nonoverlap", None, n), planned) if s.document in kept]
        for n in lengths
    ]
    every = [span for spans in each for span in spans]
    ways: dict[str, Callable[[], object]] = {
        "tail": lambda: score(model, tail, planned),
        "last_k": lambda: score(model, single, planned),
        "forward": lambda: bare(model, tail, planned),
        "shared": lambda: score(model, every, planned),
        "apart": lambda: [score(model, spans, planned) for spans in each],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    together = score(model, every, planned)
    difference = max(
        float(abs(together[span] - nats).max())
        for spans in each
        for span, nats in score(model, spans, planned).items()
    )
    control, ratio, saved = (
        median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))
        for slow, fast in (("tail", "last_k"), ("tail", "forward"), ("apart", "shared"))
    )
    return (
        f"| {run_dir.name} | {median(seconds['tail']):.0f} | {control:.2f} | {ratio:.2f} "
        f"| {median(seconds['shared']):.0f} | {saved:.2f} | {difference:.0e} |"
    )


def score(model: Transformer, spans: Sequence[Span], planned: Plan) -> dict[Span, Scored]:
    return scoring.score(
        model,
        spans,
        planned.corpus,
        precision="fp32",
        generator_seed=0,
        ranks=ALONE,
        advance=lambda n: None,
    )


@torch.inference_mode()
def bare(model: Transformer, spans: Sequence[Span], planned: Plan) -> None:
    """Runs the model over as many tokens in the same batches, and takes its last states alone."""
    for one in scoring.passes(model, spans, spans):
        size, length = len(one.hosts), one.hosts[0].length
        tokens = planned.corpus.validation.tokens[: size * length].astype(int)
        inputs = torch.from_numpy(tokens).view(size, length)
        model(inputs, n_last=1, generator=torch.Generator().manual_seed(0))


if __name__ == "__main__":
    main()
