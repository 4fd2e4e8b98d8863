"""Names of the files in an exported folder, and the schema of its config.json."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

WEIGHTS, CONFIG, TOKENIZER, CARD = "model.safetensors", "config.json", "tokenizer.json", "README.md"
PLUGINS = "plugins"


class About(BaseModel):
    """The configuration of a run's training, and which checkpoint of it this is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model_type: Literal["lengthgen"]
    format: Literal[1]
    lengthgen: str  # the version that wrote it
    run: str
    step: int
    steps: int  # that the training was to take
    tokens_seen: int
    fingerprint: str  # of the corpus
    card: str  # the sha256 of README.md as it was written
    plugins: list[Annotated[str, Field(pattern=rf"^{PLUGINS}/[0-9a-f]{{8}}\.py$")]]
    config: dict[str, Any]  # without plugins, eval and runtime
