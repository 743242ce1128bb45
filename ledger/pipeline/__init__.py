"""What a user declares: a pipeline, its steps, and what its functions can return."""
