"""Input of the benchmarks, made once: the flights of 2013 three times over, and sentences."""

import csv
import json
import random
from collections import Counter
from pathlib import Path

from demo import data

SENTENCES = 2_000_000
WORDS = 8
PARTS = 4

FEW_MISSING = "planes_few_missing.csv"
NO_PLANE = "none"  # a plane of that list, for flights without one
LOST = 1_000  # about so many flights are of planes that it lacks
REPEATS = 3  # of each flight
MEASUREMENT = "id BIGINT, place STRING, amount DOUBLE"


def write(folder: Path) -> None:
    """Write all input below ``folder``, unless it is there."""
    if not (folder / "complete").exists():
        flights(folder)
        sentences(folder / "sentences" / "2013-01-01")
        (folder / "complete").touch()
    if not (folder / FEW_MISSING).exists():
        few_missing(folder)


def flights(folder: Path) -> None:
    """One file of 1,010,328 flights, the planes and the weather."""
    months = folder / "months"
    data.write_months(months)
    data.write_planes(folder)
    (months / "weather.csv").rename(folder / "weather.csv")
    files = sorted((months / "flights").glob("*.csv"))
    header = files[0].read_text().partition("\n")[0] + "\n"
    target = folder / "flights" / "2013-01-01.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w") as stream:
        stream.write(header)
        for _ in range(REPEATS):
            for file in files:
                stream.write(file.read_text().removeprefix(header))


def few_missing(folder: Path) -> None:
    """A list of all planes that flew, but for a few: about ``LOST`` flights are theirs."""
    with (folder / "planes.csv").open(newline="") as stream:
        header, *rows = csv.reader(stream)
    listed = {row[0]: row for row in rows}
    with (folder / "flights" / "2013-01-01.csv").open(newline="") as stream:
        flown = Counter(row["tailnum"] for row in csv.DictReader(stream))
    left = LOST
    with (folder / FEW_MISSING).open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        for plane in sorted(flown):
            if plane != "NA" and flown[plane] <= left:
                left -= flown[plane]
                continue
            name = NO_PLANE if plane == "NA" else plane
            writer.writerow(listed.get(plane, [name, *["NA"] * (len(header) - 1)]))


def sentences(folder: Path) -> None:
    """Two million sentences of eight words out of ten thousand, one JSON object a line."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(2013)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(dice.choices(letters, k=dice.randint(2, 9))) for _ in range(10_000)]
    for part in range(PARTS):
        with (folder / f"part-{part}.jsonl").open("w") as stream:
            for _ in range(SENTENCES // PARTS):
                text = " ".join(dice.choices(words, k=WORDS))
                stream.write(json.dumps({"sentence": text}) + "\n")
