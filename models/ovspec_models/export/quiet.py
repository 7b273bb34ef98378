"""Silence the output of the export libraries, but keep their warnings for error messages."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = (
    *("optimum", "transformers", "nncf", "torch"),
    *("openvino", "huggingface_hub", "datasets", "py.warnings"),
)
# The first logger has, at debug level only, the reason why optimum-intel did not convert a tokenizer. The
# second reports weights that do not fit, whatever log level the user's environment sets.
_LEVELS = {"optimum.exporters.openvino": logging.DEBUG, "transformers.modeling_utils": logging.WARNING}


class LogCollector(logging.Handler):
    """Collects log records of the libraries, for failures that are logged and not raised."""

    def __init__(self) -> None:
        super().__init__(level=logging.DEBUG)
        self.messages: list[str] = []

    def last_about(self, word: str) -> str:
        """Return the last message that contains `word`, or a text that says there is none."""
        return next((text for text in reversed(self.messages) if word in text), "no reason was logged")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message of one record."""
        self.messages.append(" ".join(record.getMessage().split()))


@contextmanager
def library_output(verbose: bool) -> Iterator[LogCollector]:
    """Silence loggers, Python warnings and progress bars of the export libraries unless `verbose`.

    Yields the collector of their messages. The exit restores everything. Exceptions pass through. Import the
    libraries before: some of them configure their loggers on import.
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
