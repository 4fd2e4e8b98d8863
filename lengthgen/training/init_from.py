"""The first weights of a run that another run has trained: fine-tuning, context extension."""

from collections.abc import Callable
from pathlib import Path

from lengthgen.config.schema import Config, InitFrom
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.errors import UserError
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, directory, status


def identified(config: Config) -> Config:
    """Returns the configuration with what train.init_from=RUN identifies in place of the folder."""
    if not isinstance(config.train.init_from, Path):
        return config
    try:
        run_dir = directory.find(str(config.train.init_from), config.runtime.root)
        base = directory.load_config(run_dir)
    except UserError as error:
        raise UserError(f"train.init_from: {error}") from None
    done = status.read_done(run_dir, run=base.run_id)
    if done is None:
        raise UserError(
            f"train.init_from: {run_dir} is not trained to its end; repeat its lengthgen train "
            "command first"
        )
    for key in ("arch", "d_model", "n_layers", "n_heads", "d_ff"):
        there, here = getattr(base.model, key), getattr(config.model, key)
        if there != here:
            raise UserError(
                f"train.init_from: {run_dir.name} has model.{key}={there}, and this run "
                f"model.{key}={here}; give model.{key}={there}"
            )
    init = InitFrom(
        run=base.run_id,
        recipe=base.recipe,
        weights=done.weights,
        path=str(run_dir.resolve()),
    )
    return config.model_copy(update={"train": config.train.model_copy(update={"init_from": init})})


def load_weights(
    model: Transformer, init: InitFrom, corpus: TokenizedCorpus, *, say: Callable[[str], None]
) -> None:
    """Copies the network of the run, and of its scheme the parameters of the same name and shape.

    Parameters of the scheme that the run does not have stay as they were initialised. Raises
    UserError if the run has other weights now, or read other tokens.
    """
    run_dir = Path(init.path)
    found = checkpoints.newest(run_dir, run=init.run, say=say)
    if found is None or found.sha256 != init.weights:
        raise UserError(
            f"train.init_from: {run_dir} does not hold the weights {init.weights[:12]} any more "
            "that this run is to begin with; restore its last checkpoint"
        )
    begun = directory.corpus_fingerprint(run_dir, run=init.run)
    if begun not in (None, corpus.fingerprint):
        raise UserError(
            f"train.init_from: {init.run} was trained on other tokens ({str(begun)[:12]}, here "
            f"{corpus.fingerprint[:12]}), whose ids may mean other text; give its corpus"
        )
    own = model.state_dict()
    same = {n: w for n, w in found.weights.items() if n in own and own[n].shape == w.shape}
    fresh, unused = sorted(own.keys() - same.keys()), sorted(found.weights.keys() - same.keys())
    if network := [name for name in (*fresh, *unused) if not name.startswith("scheme.")]:
        raise UserError(f"train.init_from: {network[0]} of {init.run} has another shape than here")
    model.load_state_dict(same, strict=False)
    say(f"begins with the weights of {init.run}, step {found.step}")
    for names, what in ((fresh, "initialised"), (unused, "not used")):
        if names:
            say(f"of the scheme, {what}: {', '.join(names)}")
