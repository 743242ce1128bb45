"""The tests that pytest has found in this process."""

TESTS: dict[str, bool] = {}  # by name: whether only ``make test-all`` runs it
OFTEN: set[str] = set()  # the cases that modules name to run often
