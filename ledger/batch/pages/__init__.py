"""Content of the pages: of a pipeline, of a batch and of its records."""
