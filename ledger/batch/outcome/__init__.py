"""Outcome of batches, as commands, pages and alerts report it."""
