"""Types: Arrow's are the model, and each kind of source or sink has a table to its own."""
