"""The sources that a pipeline can read, in one folder for each kind."""
