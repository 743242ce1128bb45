"""The sources that a pipeline can read, one module or folder for each kind."""
