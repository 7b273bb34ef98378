"""check_same_token_ids: padded models are accepted, any other token at any id is refused by name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import openvino_genai
import pytest

from ovspec_models import check_same_token_ids, demo_pair_path

Edit = Callable[[Path, Callable[[dict], None]], None]
TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
OPENVINO_FILES = tuple(f"openvino_{n}.{e}" for n in ("tokenizer", "detokenizer") for e in ("xml", "bin"))


def copy(folder: Path, files: tuple[str, ...]) -> Path:
    folder.mkdir()
    for name in files:
        shutil.copy(demo_pair_path() / name, folder)
    return folder


def test_demo_pair() -> None:
    check_same_token_ids(demo_pair_path(), demo_pair_path() / "draft")


def test_padded_vocabulary_is_accepted(tmp_path: Path, edit_json: Edit) -> None:
    draft = copy(tmp_path / "draft", TOKENIZER_FILES)
    edit_json(draft / "config.json", lambda c: c.update(vocab_size=4352))
    check_same_token_ids(demo_pair_path(), draft)


def test_too_small_embedding_is_refused(tmp_path: Path, edit_json: Edit) -> None:
    draft = copy(tmp_path / "draft", TOKENIZER_FILES)
    edit_json(draft / "config.json", lambda c: c.update(vocab_size=4095))
    with pytest.raises(ValueError, match=r"vocab_size 4095, expected more than .* 4095"):
        check_same_token_ids(demo_pair_path(), draft)


def test_special_tokens_need_no_row(tmp_path: Path, edit_json: Edit) -> None:
    """As Gemma 3's for pictures, of which its text models have none."""
    draft = copy(tmp_path / "draft", TOKENIZER_FILES)
    edit_json(draft / "config.json", lambda c: c.update(vocab_size=4096))
    for special in (True, False):
        extra = {"id": 4096, "content": "<image_soft_token>", "special": special}
        edit_json(draft / "tokenizer.json", lambda data, e=extra: data.update(added_tokens=[e]))
        if special:
            check_same_token_ids(draft, draft)
    with pytest.raises(ValueError, match=r"vocab_size 4096, expected more than .* 4096"):
        check_same_token_ids(draft, draft)


def test_first_differing_token_is_named(tmp_path: Path, edit_json: Edit) -> None:
    draft = copy(tmp_path / "draft", TOKENIZER_FILES)

    def swap(data: dict) -> None:
        vocab = data["model"]["vocab"]
        vocab["A"], vocab["B"] = vocab["B"], vocab["A"]

    vocab = json.loads((draft / "tokenizer.json").read_text())["model"]["vocab"]
    first = min(vocab["A"], vocab["B"])
    edit_json(draft / "tokenizer.json", swap)
    with pytest.raises(
        ValueError, match=rf"token id {first} is 'A' in the target and 'B' in the draft"
    ) as caught:
        check_same_token_ids(demo_pair_path(), draft)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("absent_in", ["target", "draft"])
def test_extra_token_is_refused(tmp_path: Path, edit_json: Edit, absent_in: str) -> None:
    plain, more = copy(tmp_path / "plain", TOKENIZER_FILES), copy(tmp_path / "more", TOKENIZER_FILES)
    extra = {"id": 4096, "content": "<think>", "special": True}
    edit_json(more / "tokenizer.json", lambda data: data["added_tokens"].append(extra))
    edit_json(more / "config.json", lambda c: c.update(vocab_size=4097))
    pair = (plain, more) if absent_in == "target" else (more, plain)
    with pytest.raises(ValueError, match=r"token id 4096 is .*'<think>'.*") as caught:
        check_same_token_ids(*pair)
    assert f"absent in the {absent_in}" in str(caught.value)


def test_unigram_vocabulary_is_a_list(tmp_path: Path) -> None:
    folders = []
    for name, pieces in (("a", ["<unk>", "x", "y"]), ("b", ["<unk>", "x", "z"])):
        folder = tmp_path / name
        folder.mkdir()
        model = {"type": "Unigram", "vocab": [[piece, -1.0] for piece in pieces]}
        (folder / "tokenizer.json").write_text(json.dumps({"model": model}))
        folders.append(folder)
    check_same_token_ids(folders[0], folders[0])
    with pytest.raises(ValueError, match="token id 2 is 'y' in the target and 'z' in the draft"):
        check_same_token_ids(*folders)


def test_openvino_tokenizers_are_compared_without_tokenizer_json(tmp_path: Path) -> None:
    target, draft = copy(tmp_path / "target", OPENVINO_FILES), copy(tmp_path / "draft", OPENVINO_FILES)
    check_same_token_ids(target, draft)
    check_same_token_ids(demo_pair_path(), draft)  # one with tokenizer.json, one without


def test_differing_openvino_tokenizer_is_refused(tmp_path: Path) -> None:
    target, draft = copy(tmp_path / "target", OPENVINO_FILES), copy(tmp_path / "draft", OPENVINO_FILES)
    for part in ("tokenizer", "detokenizer"):
        # The packed vocabulary is one string constant: rename the token " meat" to " beat" in its bytes.
        path = draft / f"openvino_{part}.bin"
        data = path.read_bytes()
        assert data.count(b" meat") + data.count("Ġmeat".encode()) >= 1
        path.write_bytes(data.replace(b" meat", b" beam").replace("Ġmeat".encode(), "Ġbeam".encode()))
    index = openvino_genai.Tokenizer(str(target)).get_vocab()[b" meat"]
    with pytest.raises(
        ValueError, match=rf"token id {index} is b' meat' in the target and b' beam' in the draft"
    ):
        check_same_token_ids(target, draft)


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no openvino_tokenizer\.xml.*export the model again"):
        check_same_token_ids(demo_pair_path(), tmp_path)


def test_unreadable_tokenizer_json(tmp_path: Path) -> None:
    draft = copy(tmp_path / "draft", TOKENIZER_FILES)
    (draft / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(ValueError, match=r"tokenizer\.json: cannot be read as a tokenizer"):
        check_same_token_ids(demo_pair_path(), draft)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:500])


@pytest.mark.parametrize("broken_in", ["target", "draft"])
@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        pytest.param(lambda f: cut(f / "openvino_tokenizer.xml"), "Could not determine tag", id="cut xml"),
        pytest.param(lambda f: cut(f / "openvino_tokenizer.bin"), "Incorrect weights", id="cut bin"),
        pytest.param(
            lambda f: (f / "openvino_tokenizer.bin").unlink(), "bin file cannot be found", id="no bin"
        ),
        pytest.param(lambda f: cut(f / "openvino_detokenizer.xml"), "mismatch", id="cut detokenizer"),
        pytest.param(
            lambda f: (f / "openvino_detokenizer.xml").unlink(), "vocab is empty", id="no detokenizer"
        ),
    ],
)
def test_unreadable_openvino_tokenizer(
    tmp_path: Path, broken_in: str, damage: Callable[[Path], None], cause: str
) -> None:
    folders = {name: copy(tmp_path / name, OPENVINO_FILES) for name in ("target", "draft")}
    damage(folders[broken_in])
    with pytest.raises(ValueError, match="OpenVINO tokenizer in") as caught:
        check_same_token_ids(folders["target"], folders["draft"])
    message = str(caught.value)
    assert message.startswith(f"the OpenVINO tokenizer in '{folders[broken_in]}' cannot be read (")
    assert cause in message
    assert message.endswith("export the model again: `ovspec export -m ... OUT`")
    assert "\n" not in message
    assert "Exception from" not in message


def test_base_install_is_enough() -> None:
    """The check runs at pipeline load, where torch and transformers are not installed."""
    code = (
        "import sys; from ovspec_models import check_same_token_ids, demo_pair_path as p;"
        "from ovspec_models import ModelInfo, OvspecConfig as C;"
        "check_same_token_ids(p(), p() / 'draft'); ModelInfo.read(p()); C.load(p());"
        "bad = {'torch', 'transformers', 'optimum', 'nncf'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
