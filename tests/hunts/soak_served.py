"""The served part of the soak: clients of an `ovspec serve`, some of them bad (`tests/serve/soak.py`).

Beside those, clients send requests that can't be answered. Every whole answer is compared with that of the
same request alone. The last lines are those of a hunt.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hunts.report import Report
from hunts.usage import Usage, compare_files, judged
from serve.conftest import TEMPLATE, Served, serving
from serve.soak import Soak, endless, request_bodies

from ovspec_models import demo_pair_path

_CLIENTS = 24
_MAX_NUM_SEQS = 8
_WARM_UP = 300.0
# Requests that no answer is right to: a fault that only shows while the row is computed, and those that the
# door should find.
HOSTILE: tuple[dict[str, Any], ...] = (
    {"stop_token_ids": [4096], "ignore_eos": True, "min_tokens": 1},
    {"prompt": ["a"] * 2000, "n": 16, "temperature": 1.0},
    {"stop": [f"{number}" * 4000 for number in range(16)]},
    {"prompt": [[4096]]},
    {"max_tokens": 10**9},
    {"repetition_penalty": 1e-38, "presence_penalty": 2.0},
    {"temperature": 1e-300},
)


class Clients(Soak):
    """The clients of `tests/serve/soak.py`, with a tenth who send what can't be answered."""

    def client(self, number: int) -> None:
        """One client until the end."""
        if number % 10 != 3:
            super().client(number)
            return
        chance = random.Random(number)
        while time.monotonic() < self.ends:
            body = {**chance.choice(self.bodies), **chance.choice(HOSTILE)}
            try:
                status, _ = self.answer({**body, "stream": chance.random() < 0.5})
            except OSError as error:
                self.counts[f"hostile: {type(error).__name__}"] += 1
                time.sleep(0.1)
                continue
            self.counts[f"hostile: {status}"] += 1
            if status >= 500:
                self.wrong.append(f"a hostile request was answered with {status}: {body}"[:300])


def hunt(report: Report, served: Served, seconds: float, faults: bool) -> dict[str, Any]:
    """Let clients ask for so long; what the server held."""
    bodies = request_bodies()
    alone = Soak(served, bodies, [], 0.0)
    expected = [alone.answer(body)[1] for body in bodies]
    if seconds > 2 * _WARM_UP:  # so that the cache has its size before the memory is compared
        with ThreadPoolExecutor(_MAX_NUM_SEQS) as pool:
            list(pool.map(alone.answer, map(endless, bodies)))
    before = Usage.of(served.process.pid, report.seconds)
    run = (Clients if faults else Soak)(served, bodies, expected, time.monotonic() + seconds)
    threads = [threading.Thread(target=run.client, args=(number,)) for number in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    usage = []
    while time.monotonic() < run.ends:
        time.sleep(min(5.0, seconds / 20))
        usage.append(Usage.of(served.process.pid, report.seconds))
    for thread in threads:
        thread.join()
    report.counts.update(run.counts)
    for wrong in run.wrong[:10]:
        report.found(f"answer: {wrong}")
    try:
        served.wait_for(lambda: served.metric("vllm:num_requests_running") == 0, 120)
        served.wait_for(lambda: served.metric("vllm:num_requests_waiting") == 0, 120)
    except AssertionError:
        report.found("hang: requests run though no client waits")
    if (held := served.metric("vllm:kv_cache_usage_perc")) != 0:
        report.found(f"left: a share {held} of the cache is held by nobody")
    with suppress(AssertionError):  # a connection ends a moment after its client
        served.wait_for(lambda: Usage.of(served.process.pid, 0.0).files == before.files, 10)
    compare_files(report, "server", before, Usage.of(served.process.pid, report.seconds))
    return judged(report, "server", usage, _WARM_UP)


def main() -> int:
    """Run it as the options say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--no-faults", dest="faults", action="store_false", help="without hostile requests")
    given = parser.parse_args()
    report = Report("soak, served", clients=_CLIENTS)
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "chat.jinja"
        template.write_text(TEMPLATE, encoding="utf-8")
        limits = ("--max-body-bytes", "100000", "--max-num-seqs", str(_MAX_NUM_SEQS), "--max-queued", "40")
        verify = ("--verify", "commit", "--l0", "96", "--rho", "0.1", "--chat-template", str(template))
        draft = ("--draft-model", str(demo_pair_path() / "draft"), "--property", "INFERENCE_NUM_THREADS=1")
        with serving(demo_pair_path(), "--served-model-name", "demo", *limits, *verify, *draft) as served:
            usage = hunt(report, served, given.seconds, given.faults)
    return report.end(usage=usage)


if __name__ == "__main__":
    sys.exit(main())
