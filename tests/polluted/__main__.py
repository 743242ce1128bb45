"""Runs ackledger over a copy of the Pollock benchmark: ``make polluted FOLDER=...``.

Its files have no licence, so they are not here: docs/polluted.md says where they are, and what the
table means. Ends with 1 if a row is acked with another content, or has no outcome.
"""

import argparse
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ledger.settings import Settings
from ledger.spark.session import build_session
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade
from tests.polluted import corpus
from tests.polluted.batches import Lab, judged
from tests.polluted.comparison import Verdict
from tests.polluted.corpus import Polluted

COLUMNS = {
    "files": lambda verdict: 1,
    "refused by name": lambda verdict: verdict.refused is not None,
    "rows": lambda verdict: verdict.rows,
    "exact": lambda verdict: verdict.exact,
    "failed by name": lambda verdict: verdict.failed,
    "in refused files": lambda verdict: verdict.rows if verdict.refused else 0,
    "wrong": lambda verdict: verdict.wrong,
    "without a trace": lambda verdict: verdict.lost,
    "rewritten in the clean file": lambda verdict: verdict.rewritten,
    "beyond the clean file": lambda verdict: verdict.beyond,
}
_MOST_SHOWN = 1_000  # characters of a row or a reason


def main(
    arguments: Sequence[str], laboratory: Callable[[], AbstractContextManager[Lab]] | None = None
) -> int:
    """Run all files, print the tables; 1 if a row is wrong or without a trace."""
    parser = argparse.ArgumentParser(prog="tests.polluted", description=__doc__)
    parser.add_argument("folder", type=Path, help="a copy of the benchmark, or of one data set")
    parser.add_argument("--output", type=Path, help="a file for the tables, too")
    asked = parser.parse_args(arguments)
    try:
        files = corpus.files(asked.folder)
    except FileNotFoundError as exc:
        parser.error(str(exc))
    with (laboratory or own_laboratory)() as lab:
        verdicts_ = verdicts(lab, files)
    text = report(verdicts_)
    sys.stdout.write(text)
    if asked.output:
        asked.output.write_text(text)
    return int(any(verdict.wrong or verdict.lost for _, verdict in verdicts_))


@contextmanager
def own_laboratory() -> Iterator[Lab]:
    """A session of Spark, and a ledger in an embedded server of its own; both end."""
    with tempfile.TemporaryDirectory(prefix="ackledger-") as name:
        home = Path(name)
        home.chmod(0o755)  # the server may run as another user
        database = Database(embedded.start(home))
        try:
            upgrade(database)
            settings = Settings(home=home, storage=str(home / "storage"), data=str(home))
            spark = build_session("polluted", "local[2]")
            yield Lab(spark, database, settings)
            spark.stop()
        finally:
            database.dispose()
            embedded.stop(home)


def verdicts(lab: Lab, files: Iterable[Polluted]) -> list[tuple[Polluted, Verdict]]:
    """The verdict on each file; of each batch a line to stderr."""
    verdicts_: list[tuple[Polluted, Verdict]] = []
    for number, group in enumerate(corpus.groups(files)):
        began = time.monotonic()
        verdicts_ += judged(lab, f"polluted_{number}", group)
        took = time.monotonic() - began
        sys.stderr.write(f"{group[0].kind}: {len(group)} files in {took:.1f} s\n")
    return verdicts_


def report(verdicts_: Sequence[tuple[Polluted, Verdict]]) -> str:
    """The figures by kind of pollution as a table of Markdown, then what is refused or wrong."""
    by_kind = defaultdict(list)
    for file, verdict in verdicts_:
        by_kind[file.kind].append(verdict)
    kinds = sorted(by_kind, key=[*corpus.KINDS.values(), corpus.AS_IT_IS].index)
    lines = [_line(["what is broken", *COLUMNS]), _line(["---", *["---:"] * len(COLUMNS)])]
    lines += [_line([kind, *_figures(by_kind[kind])]) for kind in kinds]
    lines.append(_line(["all", *_figures([verdict for _, verdict in verdicts_])]))
    if reasons := _reasons(verdicts_):
        lines += ["", _line(["why records failed", "records"]), _line(["---", "---:"])]
        lines += [_line([why, f"{times:,}"]) for why, times in reasons.most_common()]
    for file, verdict in verdicts_:
        words = [f"refused: {verdict.refused}"] if verdict.refused else verdict.shown
        lines += [f"\n{file.path.name}: {line[:_MOST_SHOWN]}" for line in words]
    return "\n".join(lines) + "\n"


def _reasons(verdicts_: Iterable[tuple[Polluted, Verdict]]) -> Counter[str]:
    """How many records failed for each reason, whatever its numbers are."""
    reasons: Counter[str] = Counter()
    for _, verdict in verdicts_:
        for reason, times in verdict.reasons.items():
            reasons[re.sub(r"\d+", "N", reason)] += times
    return reasons


def _figures(verdicts: Sequence[Verdict]) -> list[str]:
    return [f"{sum(map(figure, verdicts)):,}" for figure in COLUMNS.values()]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
