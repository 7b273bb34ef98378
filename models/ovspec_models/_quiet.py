"""Keep the chatter of the export libraries off the terminal without losing what they warned about."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = (
    "optimum",
    "transformers",
    "nncf",
    "torch",
    "openvino",
    "huggingface_hub",
    "datasets",
    "py.warnings",
)


# optimum-intel says why a tokenizer was not converted at the first logger's debug level only; the second
# reports weights that do not fit, whatever the user's environment has silenced.
_LEVELS = {"optimum.exporters.openvino": logging.DEBUG, "transformers.modeling_utils": logging.WARNING}


class LogCollector(logging.Handler):
    """Collects what the libraries log, for the message of a failure that is logged and not raised."""

    def __init__(self) -> None:
        super().__init__(level=logging.DEBUG)
        self.messages: list[str] = []

    def last_about(self, word: str) -> str:
        """Return the last message that contains `word`, or that there is none."""
        return next((text for text in reversed(self.messages) if word in text), "no reason was logged")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message of one record."""
        self.messages.append(" ".join(record.getMessage().split()))


@contextmanager
def library_output(verbose: bool) -> Iterator[LogCollector]:
    """Silence loggers, Python warnings and progress bars of the export libraries unless `verbose`.

    Yields the collector of their messages. Everything is put back on exit. Exceptions pass through.
    Import the libraries before entering: some of them set up their loggers on import.
    """
    collector = LogCollector()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers = [*logger.handlers, collector] if verbose else [collector]
        logger.propagate = verbose and logger.propagate
    levels = {name: logging.getLogger(name).level for name in _LEVELS}
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    try:
        if verbose:
            yield collector
        else:
            with warnings.catch_warnings(), _no_progress_bars():
                warnings.simplefilter("ignore")
                yield collector
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    import rich
    from transformers.utils import logging as transformers_logging

    console = rich.get_console()  # the one NNCF's progress bars draw on
    quiet, bars = console.quiet, transformers_logging.is_progress_bar_enabled()
    console.quiet = True
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        console.quiet = quiet
        if bars:
            transformers_logging.enable_progress_bar()
