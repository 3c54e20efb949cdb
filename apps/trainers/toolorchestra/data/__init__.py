"""Published rows as the data files of a run."""
