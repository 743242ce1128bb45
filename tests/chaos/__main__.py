"""Run it: ``make chaos``, ``make chaos SEED=7``, ``make chaos SUBMIT=batch``. Everything is
recreated under ``var/chaos``.
"""

import argparse
import random
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tests.chaos.campaign import LONG, SHORT, Campaign, Outcome
from tests.chaos.schedule import Kind
from tests.chaos.world import World

HOME = Path("var/chaos").absolute()
console = Console(width=max(100, Console().width), highlight=False)


def main() -> int:
    """0 if every assertion holds and every kill was carried out."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat the schedule and the data of a run")
    parser.add_argument("--minutes", type=float, help="how long processes are killed")
    parser.add_argument("--short", action="store_true", help="3,000 records, nine kills")
    parser.add_argument(
        "--submit",
        choices=("stage", "batch"),
        default="stage",
        help="a driver for each step, or batch",
    )
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(10_000)
    plan = replace(SHORT if arguments.short else LONG, seed=seed, submit=arguments.submit)
    if arguments.minutes is not None:
        plan = replace(plan, minutes=arguments.minutes)
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    World(HOME).stop()  # what an interrupted run left
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    console.print(
        f"seed {seed}: {plan.records:,} records in {plan.batches} batches, "
        f"{sum(plan.kills.values())} kills in {plan.minutes:g} minutes"
    )
    outcome = Campaign(plan, HOME, print_line).run()
    report(outcome)
    if not outcome.good:
        console.print(f"[red]What happened stands in {HOME}: airflow/logs, sweeper.log[/]")
    return 0 if outcome.good else 1


def print_line(line: str) -> None:
    """One line of progress, at once."""
    console.print(line, soft_wrap=True)
    console.file.flush()


def report(outcome: Outcome) -> None:
    """Seed, kills by kind, seconds, and each assertion."""
    counts = outcome.counts
    last = outcome.kills[-1].second if outcome.kills else 0
    quarantined = f"{outcome.quarantined:,} records quarantined"
    killed = ", ".join(f"{counts[kind]} {kind}" for kind in Kind)
    console.print(f"""
seed      {outcome.seed}
kills     {len(outcome.kills)}: {killed}
seconds   {outcome.seconds:.0f}, the last kill after {last:.0f}
records   {outcome.records:,}: {outcome.rows:,} rows in each sink, {quarantined}
replays   {outcome.replays}
reader    {outcome.looks:,} looks
""")
    if outcome.unfinished:
        console.print(f"[red]abandoned[/]  {outcome.unfinished}")
    for kind, count in outcome.missed.items():
        if count:
            console.print(f"[red]missed[/]  {count} kills of {kind}: the run was over before")
    for assertion, wrong in outcome.wrong.items():
        console.print(f"[red]WRONG[/] {assertion}" if wrong else f"[green]holds[/] {assertion}")
        for sentence in wrong:
            console.print(f"        {sentence}")


if __name__ == "__main__":
    sys.exit(main())
