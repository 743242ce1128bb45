"""Where a pipeline can write: one folder for each kind of sink."""
