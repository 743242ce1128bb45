"""The Spark side: emit, stages, sinks, and the deltas derived from what they wrote."""
