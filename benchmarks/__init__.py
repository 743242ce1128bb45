"""What tracking costs: the same work with and without it, in interleaved rounds of one session."""
