"""What keeps an installation in order: the sweeper, retention, checks."""
