"""The pipeline of late departures, over real flights, loses and drops what pandas counts."""

from datetime import UTC, datetime

from sqlalchemy import text

from demo import __main__ as demo
from demo import oracle
from jobs.late import pipeline
from tests.support.flights import write_slice


def test_late_departures_have_one_of_each_end(runner, environment, tmp_path):
    """A false condition drops a flight; a NULL delay and a missing plane lose it, as the demo
    compares.
    """
    write_slice(tmp_path, months=(3,), flights=2000)
    run = runner(pipeline)
    batch = run.open(start=datetime(2013, 3, 1, tzinfo=UTC), end=datetime(2013, 4, 1, tzinfo=UTC))
    run.settled(batch)
    query = demo.ENDS.replace("batch_id = 4", f"batch_id = {batch.batch_id}")
    with run.job.database.reader.connect() as connection:
        causes = demo.causes(connection.execute(text(query)))
    wanted = oracle.expected_causes(tmp_path, "2013-03-01")
    assert causes == wanted
    assert min(wanted.values()) > 0
