"""Documents, whatever their source: what identifies them."""

from pathlib import Path

from small_corpora import files, write

from lengthgen.data import sources


def test_a_change_of_a_file_changes_the_source_key(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "A", "b.txt": "B"})
    before = sources.source_key(files(tmp_path))
    write(tmp_path, {"b.txt": "BB"})
    assert sources.source_key(files(tmp_path)) != before
