"""Where the records of a source's run come from: one object, chosen once."""
