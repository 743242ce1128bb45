"""Ctrl-C while a script is audited."""

import logging
import signal
from contextlib import suppress
from threading import Event, Thread, current_thread, main_thread
from typing import NoReturn

from pyspark import SparkContext

_SECONDS = 5
INTERRUPTED = Event()


def interrupt(signal_number: int, frame: object) -> NoReturn:
    """Raise KeyboardInterrupt for a signal, without the stacks that Spark and py4j log of the calls
    that it cuts off.

    The handler that Spark installs calls its JVM in the middle of another call. Another thread may
    call this one. ``INTERRUPTED`` is set because a script may go on: a finalizer swallows the
    exception.
    """
    INTERRUPTED.set()
    logging.disable()
    thread = Thread(target=_quieten, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    raise KeyboardInterrupt


def _quieten() -> None:
    context = SparkContext._active_spark_context
    if context is not None:
        with suppress(Exception):  # its JVM does not answer
            context.setLogLevel("OFF")


def take_interrupts() -> None:
    """Handle Ctrl-C in place of Spark, once the script has a session."""
    handler = signal.getsignal(signal.SIGINT)
    is_sparks = str(getattr(handler, "__module__", "")).startswith("pyspark.")
    if is_sparks and current_thread() is main_thread():
        signal.signal(signal.SIGINT, interrupt)
