"""Rows as a dataset of the Hugging Face Hub with its card, and folders that are uploaded there."""

import shlex
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal

import pandas as pd
import yaml

from lengthgen.errors import Say, UserError, first_line
from lengthgen.escaping import escape_markdown, visible, without_folders
from lengthgen.files import replace_file
from lengthgen.report.load import ROWS, to_parquet
from lengthgen.report.report import ReportSection, page_title, table_text
from lengthgen.runs import directory

TAGS = ["lengthgen", "length-extrapolation", "positional-encoding"]


def write_dataset(
    rows: pd.DataFrame, made: Sequence[ReportSection], page: Path, repository: str
) -> Path:
    """Returns the folder, beside the page of a report, that is uploaded as a dataset.

    It holds the page, the rows without folders of this machine, and the card, which names the
    repository. Raises UserError if it cannot be written.
    """
    folder, about, title = page.parent / "dataset", directory.environment(), page_title(rows)
    data = [{"config_name": "default", "data_files": ROWS}]
    keys = {"pretty_name": title, "tags": TAGS, "configs": data}
    text = (
        (files("lengthgen.report") / "dataset.md")
        .read_text()
        .format(
            front_matter=yaml.safe_dump(keys, sort_keys=False),
            title=escape_markdown(title),
            headline=escape_markdown(made[0].headline),
            version=about["lengthgen"],
            commit=about["commit"] or "unknown",
            repository=repository,
            tables=table_text(made),
            command=visible(without_folders(shlex.join(["lengthgen", *sys.argv[1:]]))),
            commands="\n".join(f"    {visible(c)}" for section in made for c in section.commands),
        )
    )
    of_runs = ["config", "environment"]
    shared = rows.assign(**{name: rows[name].map(without_folders) for name in of_runs})
    replace_file(folder / ROWS, to_parquet(shared))
    replace_file(folder / page.name, page.read_bytes())
    replace_file(folder / "README.md", text.encode())
    return folder


def upload_folder(
    folder: Path,
    repository: str,
    *,
    kind: Literal["model", "dataset"],
    say: Say,
) -> str:
    """Uploads a folder to a repository of the Hub, and returns its address.

    A new one is private. Raises UserError if it cannot be written.
    """
    import huggingface_hub

    say(f"uploading {folder} to {repository}")
    api = huggingface_hub.HfApi()
    try:
        address = str(api.create_repo(repository, repo_type=kind, private=True, exist_ok=True))
        api.upload_folder(repo_id=repository, repo_type=kind, folder_path=folder)
    except huggingface_hub.errors.HFValidationError as error:
        raise UserError(f"--push: {first_line(error)}; give USER/NAME") from None
    except Exception as error:  # of the library and of what it sends with
        remedy = shlex.join(["hf", "upload", repository, str(folder), f"--repo-type={kind}"])
        raise UserError(
            f"--push: {repository} cannot be written ({first_line(error)}); log in with hf auth "
            f"login, then: {remedy}"
        ) from None
    return address
