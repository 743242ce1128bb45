"""Records that failed: what they contain, what became of them, and how they are forgotten."""
