"""Models by name, from a hub of this machine that is slow, changes, breaks off and refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import command, installed_ovspec, one_line, ovspec
from gguf_files import GgufModel
from models.hub_server import Hub, serving

from ovspec_models import demo_pair_path
from ovspec_models.sources import model_folder, model_name
from ovspec_models.sources.hub import HubName, wanted_files

pytest.importorskip("huggingface_hub")
NAME = "demo/pair"
FETCH = "import sys; from ovspec_models.sources import model_folder; print(model_folder(sys.argv[1], print))"
Fetch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def pair() -> dict[str, bytes]:
    folder = demo_pair_path()
    files = [path for path in folder.rglob("*") if path.is_file() and "eagle3" not in path.parts]
    held = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return held | {"modeling_evil.py": b"raise SystemExit", "model.safetensors": b"x" * 100, "a.png": b"x"}


@pytest.fixture
def hub(pair: dict[str, bytes]) -> Iterator[Hub]:
    with serving() as found:
        found.files[NAME] = dict(pair)
        yield found


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return kept | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": "1",
    }


@pytest.fixture
def fetch(environment: dict[str, str], tmp_path: Path) -> Fetch:
    """Ask for a model in a process of its own: huggingface_hub reads its variables once."""

    def get(name: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return command(sys.executable, "-c", FETCH, name, env=environment | variables, cwd=tmp_path)

    return get


def folder_of(run: subprocess.CompletedProcess[str]) -> Path:
    assert run.returncode == 0, run.stderr
    return Path(run.stdout.splitlines()[-1])


def why(run: subprocess.CompletedProcess[str]) -> str:
    last = run.stderr.strip().splitlines()[-1]
    assert run.returncode and last.startswith("ValueError: "), run.stderr
    return last


def test_folder_is_fetched_once_without_code(hub: Hub, fetch: Fetch, pair: dict[str, bytes]) -> None:
    folder = folder_of(fetch(NAME))
    fetched = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"openvino_model.bin", "config.json", "draft/openvino_model.bin"} <= fetched
    assert not fetched & {"modeling_evil.py", "model.safetensors", "a.png"}
    assert (folder / "openvino_model.bin").read_bytes() == pair["openvino_model.bin"]
    assert model_name(folder) == NAME
    before = len([line for line in hub.asked if line.startswith("GET /demo")])
    assert folder_of(fetch(NAME)) == folder
    assert len([line for line in hub.asked if line.startswith("GET /demo")]) == before


@pytest.mark.slow
def test_commands_take_names(environment: dict[str, str], tmp_path: Path) -> None:
    options = ("--drafter", "none", "--max-new-tokens", "4")
    run = installed_ovspec("generate", "-m", NAME, "-p", "Once", *options, env=environment, cwd=tmp_path)
    assert run.returncode == 0 and run.stdout.strip(), run.stderr
    offline = environment | {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:1"}
    again = installed_ovspec("generate", "-m", NAME, "-p", "Once", *options, env=offline, cwd=tmp_path)
    assert again.stdout == run.stdout, again.stderr


@pytest.mark.slow
def test_unreachable_hub_leaves_the_cache(hub: Hub, fetch: Fetch) -> None:
    folder = folder_of(fetch(NAME))
    assert folder_of(fetch(NAME, HF_ENDPOINT="http://127.0.0.1:1")) == folder
    assert "nor in huggingface_hub's cache" in why(fetch("demo/other", HF_ENDPOINT="http://127.0.0.1:1"))
    assert "HF_HUB_OFFLINE is set" in why(fetch("demo/other", HF_HUB_OFFLINE="1"))


@pytest.mark.slow
def test_cut_connections_are_resumed(hub: Hub, fetch: Fetch, pair: dict[str, bytes]) -> None:
    hub.cut_after = 10_600_000  # huggingface_hub writes 10 MiB at a time
    folder = folder_of(fetch(NAME))
    assert (folder / "openvino_model.bin").read_bytes() == pair["openvino_model.bin"]
    parts = [line for line in hub.asked if line.startswith("GET") and line.endswith("/openvino_model.bin")]
    assert len(parts) > 2


@pytest.mark.slow
def test_hub_that_stays_away(hub: Hub, fetch: Fetch) -> None:
    hub.cut_after = 4_000
    assert "could not be fetched" in why(fetch(NAME))


@pytest.mark.slow
def test_changed_file_is_fetched_anew(hub: Hub, fetch: Fetch) -> None:
    first = folder_of(fetch(NAME))
    hub.files[NAME]["config.json"] += b"\n"
    second = folder_of(fetch(NAME))
    assert second != first
    assert (second / "config.json").read_bytes() == hub.files[NAME]["config.json"]


@pytest.mark.slow
def test_full_disk(environment: dict[str, str], tmp_path: Path) -> None:
    limit = ("bash", "-c", 'ulimit -f 2000; exec "$@"', "limit")
    run = command(*limit, sys.executable, "-c", FETCH, NAME, env=environment, cwd=tmp_path)
    assert run.returncode
    assert "does not fit on the disk" in why(run) or "could not be fetched" in why(run)


REFUSED = {
    "demo/none": "there is no such model, or it is private",
    "demo/a--b": "no name on a hub (",
    "demo/none.": "no name on a hub (",
    "demo/private": "there is no such model, or it is private",
    "demo/gated": "take them there, and log in",
    "demo/pair@v9": "has no revision v9",
    "demo/checkpoint": "`ovspec export -m demo/checkpoint OUT`",
    "demo/nothing": "holds no OpenVINO model",
    "demo/ggufs": "2 GGUF files; give one, such as demo/ggufs:a.gguf",
    "demo/ggufs:c.gguf": "has no file c.gguf",
}
REFUSALS = """
import sys
from ovspec_models.sources import model_folder
for name in sys.argv[1:]:
    try:
        model_folder(name, print)
    except ValueError as error:
        print(repr(str(error)))
"""


def test_a_folder_of_the_names_owner_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    for name, asks in (("demo/pair", True), ("demo:Q4_0", False), ("/demo/pair", False)):
        line = one_line(ovspec("info", name, cwd=tmp_path))
        assert ("'demo' is a folder here, so no hub is asked" in line) == asks
        assert "owner/name:file.gguf" in line


def test_a_cache_that_cannot_be_used_is_named(fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = fetch(NAME, HF_HOME=str(tmp_path / "file"))
    assert "file/token can't be read (Not a directory; HF_HOME sets its folder)" in why(run)


def test_names_that_are_refused(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    hub.files |= {
        "demo/private": {},
        "demo/gated": {},
        "demo/checkpoint": {"config.json": b"{}", "model.safetensors": b""},
        "demo/nothing": {"README.md": b""},
        "demo/ggufs": {"a.gguf": b"", "b.gguf": b""},
    }
    hub.gated.add("demo/gated")
    hub.private.add("demo/private")
    run = command(sys.executable, "-c", REFUSALS, *REFUSED, env=environment, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    for said, line in zip(REFUSED.values(), run.stdout.splitlines(), strict=True):
        assert said in line
    assert not [line for line in hub.asked if "/resolve/" in line]


def test_gguf_by_name(hub: Hub, fetch: Fetch) -> None:
    hub.files["demo/gguf"] = {"q4/tiny.gguf": GgufModel().content(), "q8.gguf": b"no"}
    folder = folder_of(fetch("demo/gguf:q4/tiny.gguf"))
    assert folder.name == "tiny" and (folder / "openvino_model.xml").is_file()


@pytest.mark.parametrize("text", ["owner/name", "o.w-n_er/Na.me-4b@main", "o/n@v1.0:q4/m-Q4_0.gguf"])
def test_names(text: str) -> None:
    assert str(HubName.of(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "./owner/name",
        "~/name",
        "/owner/name",
        "name",
        "a/b/c",
        "../name",
        "tests/name",
        "o/m.gguf",
        "o/n:m.bin",
    ],
)
def test_paths_are_no_names(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    assert HubName.of(text) is None
    assert HubName.of(Path("owner/name")) is None
    assert model_folder(Path("owner/name")) == Path("owner/name")


def test_all_graphs_of_a_model_that_reads_pictures_are_fetched() -> None:
    graphs = ["openvino_language_model", "openvino_text_embeddings_model", "openvino_vision_embeddings_model"]
    files = [f"{graph}.{kind}" for graph in graphs for kind in ("xml", "bin")] + ["preprocessor_config.json"]
    assert wanted_files(HubName("o/n"), [*files, "modeling.py", "model.safetensors"]) == files


@pytest.mark.parametrize("command_line", ["info {}", "export -m {} out", "info {}/x.gguf"])
def test_a_home_of_nobody_is_no_folder(command_line: str, tmp_path: Path) -> None:
    line = one_line(ovspec(*command_line.format("~nobody-here").split(), cwd=tmp_path))
    assert "~nobody-here" in line and ("does not exist" in line or "no folder" in line)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user that nobody knows")
def test_without_a_home_a_place_for_the_cache_is_asked_for() -> None:
    program = "from ovspec_models.sources.gguf_folder import user_cache; import os; os.setuid(54321)"
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_CACHE_HOME")}
    done = command(sys.executable, "-c", f"{program}; user_cache()", env=environment)
    assert "no home folder for ovspec's cache: set XDG_CACHE_HOME" in why(done)


def test_parts_of_a_file_come_together() -> None:
    files = [f"m-0000{part}-of-00002.gguf" for part in (1, 2)] + ["m.gguf.txt", "other.txt"]
    assert wanted_files(HubName("o/n"), files) == files[:2]
    assert wanted_files(HubName("o/n", file=files[1]), files) == files[:2]


@pytest.mark.parametrize("file", ["best-of-breed.gguf", "m-00000-of-00000.gguf"])
def test_names_that_look_like_parts(file: str) -> None:
    assert wanted_files(HubName("o/n"), [file]) == [file]
