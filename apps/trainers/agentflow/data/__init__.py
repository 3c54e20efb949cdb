"""Published data sets as the data files of a run."""
