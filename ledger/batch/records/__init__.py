"""Failed records: their content, their history, and how they are forgotten."""
