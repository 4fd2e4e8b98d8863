"""The report of a page: made-up runs of schemes that differ in what they do beyond T."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from eval_rows import row

from lengthgen.analysis import curves, findings
from lengthgen.data.windows import position_bins
from lengthgen.report import collect
from lengthgen.report.collect import Report
from lengthgen.report.run_records import Cost, RunRecord

T = 512
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
K = 64
DOCUMENTS = tuple(f"doc{i:02}.py" for i in range(24))
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 5"><path d="M0 0h8v5"/></svg>'

# Loss at each length less that at T, and what swapping the text beyond T costs.
SCHEMES: dict[str, tuple[tuple[float, ...], float]] = {
    "alibi": ((0.045, 0, -0.002, -0.003, -0.003, -0.003, -0.003), 0.0),
    "fire": ((0.05, 0, -0.03, -0.04, 0.0, 0.01, 0.02), 0.06),
    "kerple": ((0.048, 0, -0.035, -0.055, -0.07, -0.08, -0.085), 0.08),
    "nope": ((0.05, 0, 0.02, 0.35, 1.2, 2.1, 2.9), 0.01),
    "rope": ((0.05, 0, 0.15, 0.62, 1.15, 1.5, 1.8), 0.03),
    "t5": ((0.046, 0, -0.028, -0.04, -0.045, -0.03, 0.002), 0.07),
}
AT_T = {"alibi": 2.71, "fire": 2.70, "kerple": 2.69, "nope": 2.78, "rope": 2.72, "t5": 2.70}


def example(
    schemes: Mapping[str, tuple[tuple[float, ...], float]] = SCHEMES,
    *,
    seeds: Sequence[int] = (1, 2),
    documents: Sequence[str] = DOCUMENTS,
    names: Mapping[str, str] | None = None,
    diverged: tuple[str, int] | None = None,
    **changes: Any,
) -> Report:
    """A report of all parts.

    `names` are those that schemes go by; a scheme that diverged did so in all documents of a
    length; changes are of the rows.
    """
    rows: list[dict[str, Any]] = []
    for scheme, (beyond, swapped) in schemes.items():
        for seed in seeds:
            name = (names or {}).get(scheme, scheme)
            about = {"scheme": name, "seed": seed, "run": f"{name}-tiny-toy-s{seed}-0a0a0a0a"}
            for one in _run(scheme, seed, beyond, swapped):
                if one["document"] in documents:
                    lost = {"nats": None} if (scheme, one["length"]) == diverged else {}
                    n_documents = min(one["n_documents"], len(documents))
                    rows.append({**one, **about, **lost, "n_documents": n_documents, **changes})
    points = curves.curve(rows)
    configs = {run: _config(run, points) for run in sorted({p.run for p in points})}
    by_protocol = collect.by_protocol(points, configs)
    return Report(
        by_protocol=by_protocol,
        findings=findings.findings(by_protocol),
        remarks=["Not shown: last_k at 512 (bf16), evaluated otherwise than the rest."],
        runs={run: _record(run, config) for run, config in configs.items()},
    )


def _record(run: str, config: dict[str, Any]) -> RunRecord:
    return RunRecord(
        run=run,
        config=config,
        environment=ENVIRONMENT,
        cost=Cost(parameters=1_318_144, tokens=2_502_656, seconds=125.5),
        probes={"receptive field": PICTURE},
    )


ENVIRONMENT: dict[str, Any] = {
    **{"commit": "997ac56", "python": "3.11.7", "lengthgen": "0.1.0", "devices": []},
    **{"libraries": {"torch": "2.13.0", "numpy": "2.4.6"}, "platform": "Linux-x86_64"},
}


def _config(run: str, points: Sequence[curves.Point]) -> dict[str, Any]:
    p = next(p for p in points if p.run == run)
    return {
        "seed": p.seed,
        "scheme": {"name": p.scheme, "parts": {p.scheme: {"base": 10000.0}}},
        "variants": {"window": {"window": {"width": 1.0, "sinks": 0}}},
        "model": {"name": "tiny", "d_model": 128, "n_layers": 4},
        "train": {"length": T, "tokens": 2_500_000, "lr": 0.004, "precision": "bf16"},
        "eval": {"lengths": list(LENGTHS), "targets": K, "reference_variants": ["window"]},
    }


def _run(
    scheme: str, seed: int, beyond: Sequence[float], swapped: float
) -> Iterator[dict[str, Any]]:
    noise = np.random.default_rng([seed, *scheme.encode()])
    text = np.random.default_rng(7)
    by_document = {name: text.normal(0, 0.3) for name in DOCUMENTS}
    at_T = AT_T[scheme] + noise.normal(0, 0.012)
    for length, change in zip(LENGTHS, beyond, strict=True):
        for name in DOCUMENTS:
            grown = change * (1 + noise.normal(0, 0.08))
            loss = at_T + by_document[name] + grown + noise.normal(0, 0.006)
            yield _row(name, length, loss, unigram_nats=K * (6.1 + by_document[name]))
            yield _row(name, length, loss + 0.15, protocol="nonoverlap", targets=None)
            windowed = loss - grown + (grown if length < T else 0.02)
            yield _row(name, length, windowed, variant="window")
            if length > T:
                yield _row(name, length, loss + swapped, protocol="swap")
    edges = position_bins(T, LENGTHS[-1])
    widths = np.diff(edges, prepend=0)
    late = np.interp(np.log2(np.maximum(edges, 1)), np.log2(LENGTHS), beyond)
    for name in DOCUMENTS[:4]:
        early = 3.5 / np.sqrt(edges)
        losses = at_T + by_document[name] + early + late + noise.normal(0, 0.1, len(edges))
        yield _row(
            name,
            LENGTHS[-1],
            float(losses.mean()),
            **{"protocol": "per_position", "targets": None, "n_documents": 4},
            **{"position_nats": (losses * widths).tolist(), "position_tokens": widths.tolist()},
        )


def _row(document: str, length: int, loss: float, **changes: Any) -> dict[str, Any]:
    return row(
        **{
            **{"document": document, "n_documents": len(DOCUMENTS), "length": length},
            **{"nats": K * loss, "n_tokens": K, "n_bytes": 3 * K, "n_windows": 1},
            **{"window_nats": loss, "targets": K, "reach": 16384, "train_length": T},
            **{"far_nats": 5 * loss, "far_tokens": 5},
            **changes,
        }
    )
