"""Published question-answering data as the data files of a run."""
