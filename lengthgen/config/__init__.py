"""The configuration of a run: types, composition from YAML, checks."""
