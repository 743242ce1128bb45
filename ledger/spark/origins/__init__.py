"""Origins: the places that records of a source's run come from. Each run has one, chosen once."""
