"""Types: Arrow's are the model, and each kind of source or sink maps them to its own."""
