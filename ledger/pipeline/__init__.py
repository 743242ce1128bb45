"""Declarations of users: a pipeline, its steps, and what its functions can return."""
