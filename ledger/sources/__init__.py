"""What a pipeline can read: one folder for each kind of source."""
