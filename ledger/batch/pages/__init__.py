"""What the pages show: readings by pipeline, by batch and by record."""
