"""Which tests run with every change."""

from tests.support.places import ROOT

# What make test and make test-system leave out, and of each the sister that stays.
LONG = dict(
    line.partition("  # ")[::2]
    for line in (ROOT / "tests" / "exhaustive.txt").read_text().splitlines()
    if line[:1] != "#"
)
