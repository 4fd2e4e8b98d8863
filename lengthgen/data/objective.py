"""What a model learns: which windows a step trains on. Subpackages contribute others."""

from lengthgen.config.registry import contributed
from lengthgen.config.schema import Config
from lengthgen.data.corpora import TokenizedCorpus
from lengthgen.data.sources import Source
from lengthgen.data.windows import Windows
from lengthgen.errors import UserError


class Objective:
    """Causal language modelling: every token of a text, given those before it in its window."""

    learns = "text from left to right"
    protocol = "tail"  # that scores it, by default
    end = ""  # the character behind which nothing is generated, if any

    def __init__(self, config: Config, source: Source) -> None:
        """Takes the source of the corpus too."""
        self.config = config

    @staticmethod
    def takes(config: Config) -> bool:
        """True if a run with this configuration has this objective."""
        return True

    def check(self) -> None:
        """Raises UserError for keys that contradict the objective. No plugin is run."""
        if self.config.eval.decode:
            raise UserError(
                f"eval.decode={self.config.eval.decode}: tests of a task are decoded, and corpus "
                f"{self.config.corpus.name} has none; drop it"
            )

    def check_corpus(self, corpus: TokenizedCorpus) -> None:
        """Raises UserError for a corpus that cannot be trained on or scored."""

    @property
    def train_length(self) -> int:
        """The trained length in the unit of eval.lengths."""
        return self.config.train.length

    @property
    def window_targets(self) -> int:
        """The targets of a training window, before `batch` changes it."""
        return self.config.train.length

    def example_prompt(self) -> str:
        return "def main():"

    def encoded(self, text: str) -> str:
        """Returns text as the documents spell it. Raises ValueError for what they cannot hold."""
        return text

    def decoded(self, text: str) -> str:
        """Returns text of documents as people are to read it."""
        return text

    def legend(self) -> str:
        """Returns what the characters of documents stand for, where they stand for words."""
        return ""

    def prompt_advice(self, prompt: str) -> str | None:
        """Returns what is to be said of a prompt unlike those of training, if anything."""
        return None

    def batch(self, batch: Windows, *, vocab_size: int, step: int) -> Windows:
        """Returns the global batch of a step as the model reads it; pure in all arguments."""
        return batch


def objective_of(config: Config, source: Source) -> Objective:
    """Returns the objective of a configuration: the contributed one that takes it, or text."""
    kinds: list[type[Objective]] = contributed("OBJECTIVES")
    return next((kind for kind in kinds if kind.takes(config)), Objective)(config, source)
