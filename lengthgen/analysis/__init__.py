"""Statistics of rows: curves, intervals, verdicts."""
