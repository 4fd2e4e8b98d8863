"""The first weights of a run that another run has trained: fine-tuning, context extension."""

from pathlib import Path

from lengthgen.config.overrides import overrides_of
from lengthgen.config.schema import Draft, InitFrom, Train
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.errors import Say, UserError
from lengthgen.model.transformer import Transformer
from lengthgen.runs import checkpoints, directory, status

MAY_DIFFER = {"name", "init_std", "dropout"}  # keys of a model that may differ


def identified(config: Draft) -> Train:
    """Returns the training with what train.init_from=RUN identifies in place of the folder."""
    if not isinstance(config.train.init_from, Path):
        return config.train
    try:
        run_dir = directory.find(str(config.train.init_from), config.runtime.root)
        base = directory.load_config(run_dir)
        weights = status.final_weights(run_dir, run=base.run_id)
        if weights is None:
            raise UserError(
                f"{run_dir} is not trained to its end; repeat its lengthgen train command first"
            )
        there, here = dict(base.model), dict(config.model)
        differ = {k for k in there if there[k] != here[k]} - MAY_DIFFER
        differ -= {k for k, x in base.effective_model.items() if x == config.effective_model[k]}
        other = {f"model.{k}": x for k, x in there.items() if k in differ}
        if other:
            remedy = given = " ".join(overrides_of(other))
            if base.is_imported:  # with a study
                remedy = f"--config-dir {run_dir}/conf study={base.model.name}"
            raise UserError(f"{run_dir.name} has {given}; give {remedy}")
    except UserError as error:
        raise UserError(f"train.init_from: {error}") from None
    path = str(run_dir.resolve())
    init = InitFrom(run=base.run_id, recipe=base.recipe, weights=weights, path=path)
    return config.train.model_copy(update={"init_from": init})


def load_weights(model: Transformer, init: InitFrom, corpus: TokenizedCorpus, *, say: Say) -> None:
    """Copies the network of the run, and of its scheme the parameters of the same name and shape.

    Raises UserError if the run has other weights now, or read other tokens.
    """
    run_dir = Path(init.path)
    checkpoint = checkpoints.newest(run_dir, run=init.run)
    if checkpoint is None or checkpoint.sha256 != init.weights:
        raise UserError(
            f"train.init_from: {run_dir} does not hold the weights {init.weights[:12]} any more "
            "that this run is to begin with; restore its last checkpoint"
        )
    begun = directory.read_provenance(run_dir, run=init.run).get("fingerprint")
    if begun not in (None, corpus.fingerprint):
        raise UserError(
            f"train.init_from: {init.run} was trained on other tokens than this corpus "
            f"{corpus.name} has; give the values of corpus in {run_dir}/config.yaml"
        )
    here, given = model.state_dict(), checkpoint.weights
    same = {n: w for n, w in given.items() if n in here and here[n].shape == w.shape}
    for names, what in ((here, "initialised"), (given, "not used")):
        if other := sorted(names.keys() - same.keys()):
            if not all(name.startswith("scheme.") for name in other):
                raise UserError(f"train.init_from: {other[0]} of {init.run} has another shape here")
            say(f"of the scheme, {what}: {', '.join(other)}")
    model.load_state_dict(same, strict=False)
    say(f"begins with the weights of {init.run}, step {checkpoint.step}")
