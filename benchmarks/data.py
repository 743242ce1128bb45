"""Input of the benchmarks, made once: the flights of 2013 three times over, and sentences."""

import json
import random
from pathlib import Path

from demo import data

SENTENCES = 2_000_000
WORDS = 8
PARTS = 4


def write(folder: Path) -> None:
    """Write all input below ``folder``, unless it is there."""
    if (folder / "complete").exists():
        return
    flights(folder)
    sentences(folder / "sentences" / "2013-01-01")
    (folder / "complete").touch()


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
        for _ in range(3):
            for file in files:
                stream.write(file.read_text().removeprefix(header))


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
