"""Starting a run on a GPU cluster: a file to slime's arguments to a Ray job."""
