"""A batch on the machines of a Ray cluster, by Ray Data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import ray.data
from ray.exceptions import RayError

from ovspec.serve.batch import BatchModel, Write
from ovspec.serve.batch_file import BatchEntry
from ovspec.serve.cluster.cluster import connect
from ovspec_transforms import last_line

# Tasks of a replica that run at a time: while the last answers of one end, the next one's begin.
_TASKS = 2


class BatchReplica:
    """Answers parts of a batch, in a process of its own."""

    def __init__(self, open_model: Callable[[], BatchModel]) -> None:
        self._model = open_model()

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """The answers to a part: JSON of name, status and body."""
        found: list[str] = []
        entries = [BatchEntry(**json.loads(entry)) for entry in batch["entry"]]
        self._model.answer(entries, lambda *answer: found.append(json.dumps(answer)))
        return {"answer": found}


def answer_on_cluster(
    open_model: Callable[[], BatchModel],
    entries: Sequence[BatchEntry],
    write: Write,
    part: int,
    replicas: int,
    cpus: float,
) -> None:
    """Answer entries with several replicas; a part that one did not end is given to another.

    Args:
        write: takes name, status and body of every answer, in this process.
        part: entries that are given to a replica at a time, and that are lost when this process ends.
        cpus: cores that each takes.

    Raises:
        RuntimeError: the replicas do not start, or fail.
    """
    connect()
    ray.data.DataContext.get_current().enable_progress_bars = False  # the command has one of its own
    try:
        rows = [
            {"entry": json.dumps({"custom_id": one.custom_id, "url": one.url, "body": one.body})}
            for one in entries
        ]
        data = ray.data.from_items(rows, override_num_blocks=math.ceil(len(rows) / part)).map_batches(
            BatchReplica,
            fn_constructor_args=(open_model,),
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(
                min_size=1,
                max_size=replicas,
                max_tasks_in_flight_per_actor=2 * _TASKS,
                max_concurrent_calls_per_actor=_TASKS,
                enable_true_multi_threading=True,
            ),
            num_cpus=cpus,
        )
        for row in data.iter_rows():
            write(*json.loads(row["answer"]))
    except RayError as error:
        raise RuntimeError(f"--ray: {last_line(error)}") from error
    finally:
        ray.shutdown()
