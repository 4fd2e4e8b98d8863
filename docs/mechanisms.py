"""Writes the tables of docs/schemes.md by mechanism, from the schemes and the committed results.

python docs/mechanisms.py
"""

import re
from pathlib import Path

from lengthgen.config import conf
from lengthgen.config.drafts import from_plain
from lengthgen.config.schema import to_plain
from lengthgen.experiment import resolve, resolved
from lengthgen.schemes import LayerHooks, Scheme, part_classes

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "schemes.md"
MARKED = re.compile(r"(?s)(?<=<!-- mechanisms -->\n).*?(?=<!-- end -->)")
TITLES = {  # of folders below lengthgen/schemes/, and of what is in none
    "none": "No positions",
    "absolute": "Positions of tokens",
    "rotary": "Rotations",
    "bias": "Biases by distance",
    "relative": "Keys and values by distance",
    "content": "Content",
    "layers": "Layers of two kinds",
    "conv": "Short convolutions",
}
USUAL = {"rope", "window", "pi", "log_scaling", "recurrence"}  # beside what a scheme is about
STUDIES = ("plain", "schemes", "drope")
HEAD = "| scheme | file | year | parameters | kernel | speed | measured here | the paper claims |"


def kernel(layers: list[LayerHooks]) -> str:
    """Returns which attention computes the slowest of these layers."""
    if any(layer.scores or layer.weights or layer.values for layer in layers):
        return "eager"
    if any(layer.relative_keys or layer.relative_values for layer in layers):
        return "relative"
    return "additive" if any(layer.bias or layer.visible for layer in layers) else "plain"


def place(name: str, scheme: Scheme) -> tuple[str, str]:
    """Returns the mechanism of a scheme and the file of the part that it is about."""
    parts = [*scheme.parts] or ["nope"]
    about = [part for part in parts if part not in USUAL] or parts[-1:]
    if about == ["nope"]:
        return "none", f"conf/scheme/{name}.yaml"
    layered = conf.load_choice("scheme", name).get("layers") is not None
    if not set(parts) - USUAL and layered:
        return "layers", f"conf/scheme/{name}.yaml"
    part = "short_conv" if "short_conv" in parts else about[-1]
    folder = part_classes()[part].__module__.split(".")[-2]
    folder = folder if folder in TITLES else "content"
    path = "/".join(part_classes()[part].__module__.split(".")[2:]) + ".py"
    return "conv" if part == "short_conv" else folder, path


def claim(path: Path) -> str:
    """Returns what the comment of a scheme's YAML says that its paper claims."""
    comment = "\n".join(re.findall(r"(?m)^# ?(.*)", path.read_text().partition("\nname:")[0]))
    found = re.search(r"(?s)\nClaim: (.*?)(\n\n|$)", comment)
    return " ".join(found[1].split()).replace("|", r"\|") if found else "-"


def measured(name: str) -> str:
    """Returns the verdict on the longest context of the first committed study with the scheme."""
    for study in STUDIES:
        table = ROOT / "results" / study / "table.md"
        rows = re.findall(r"(?m)^\|(.*)\|$", table.read_text()) if table.exists() else []
        head, *cells = ([cell.strip() for cell in row.split("|")] for row in rows) if rows else [[]]
        for row in cells:
            if row[0].split(" (")[0] == name and "c*" in head:
                is_length = [bool(re.fullmatch(r"\d+k?", text)) for text in head]
                at = max(i for i, text in enumerate(row) if is_length[i] and text != "-")
                said = f"{row[at].split(' ')[0].rstrip('*')} at {head[at]}"
                return f"[{said}](results/{study}.md)"
    return "-"


def speeds() -> dict[str, str]:
    """Returns the speed of training of each scheme over that without positions, where measured."""
    text = (ROOT / "results" / "cost" / "schemes.md").read_text()
    rows = (
        [cell.strip() for cell in row.split("|")] for row in re.findall(r"(?m)^\|(.*)\|$", text)
    )
    return {name: ratio for name, _, _, ratio, *_ in rows}


def tables() -> str:
    """Returns how many schemes there are, and a table of each mechanism."""
    speed = speeds()
    rows: dict[str, list[str]] = {title: [] for title in TITLES.values()}
    usual = to_plain(resolve(["model=tiny"]).config)
    for name, path in sorted(conf.choices("scheme", config_dir=None).items()):
        chosen = {"scheme": conf.defaults()["scheme"] | conf.load_choice("scheme", name)}
        scheme = resolved(from_plain(usual | chosen)).scheme.build()
        mechanism, file = place(name, scheme)
        year = re.findall(r"\b20\d\d\b", conf.describe(path))
        numbers = sum(parameter.numel() for parameter in scheme.parameters())
        cells = [f"`{name}`", f"`{file}`", year[0] if year else "-", f"{numbers:,}"]
        cells += [kernel(scheme.layers), speed.get(name, "-"), measured(name), claim(path)]
        rows[TITLES[mechanism]].append(f"| {' | '.join(cells)} |")
    line = "|---|---|---|--:|---|--:|---|---|"
    n = sum(map(len, rows.values()))
    return f"There are {n} schemes. A click on a header sorts.\n\n" + "\n".join(
        f"### {title}\n\n{HEAD}\n{line}\n" + "\n".join(rows[title]) + "\n" for title in rows
    )


def page() -> str:
    """Returns docs/schemes.md with tables of the schemes as they are now."""
    return MARKED.sub(lambda _: f"\n{tables()}\n", PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
