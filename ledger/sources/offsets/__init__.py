"""Sources that are read by offsets: a system that only the user's own class knows."""
