"""The store: what it finds, what it writes again, what it refuses, and what a killed run leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path

import numpy as np
import pytest
from commands import one_line, ovspec
from hypothesis import given
from hypothesis import strategies as st
from rag.conftest import TEXTS, embedding_model, write_texts

from ovspec.errors import InvalidValueError
from ovspec.rag import Hit, IndexChoices, Store, index
from ovspec.rag.chunks import split
from ovspec.rag.database import Database
from ovspec.rag.embedder import EmbeddingModel
from ovspec.rag.indexing import embedder_of
from ovspec.rag.store import StoreSettings

QUESTIONS = {
    "Which animal has stripes?": "zebra.txt",
    "What does flour become?": "bread.html",
    "craters of the moon": "moon.md",
    "How does the captain steer?": "ship.txt",
}
POOLED = ("pooling_mode_cls_token", "pooling_mode_mean_tokens")


def contents(path: Path) -> list[tuple[str, int, str]]:
    """All chunks of a store, and the check that words and vectors have the same."""
    with Store(path) as store:
        execute = store._database.execute
        ids = {number for (number,) in execute("SELECT id FROM chunks")}
        assert {number for (number,) in execute("SELECT rowid FROM words_docsize")} == ids
        if store.settings.embedding is not None:
            assert {number for (number,) in execute("SELECT rowid FROM vectors")} == ids
        rows = execute("SELECT path, position, text FROM chunks JOIN documents ON documents.id = document")
        return sorted((Path(name).name, place, text) for name, place, text in rows)


@pytest.mark.parametrize("vectors", [False, True])
def test_documents_are_found(tmp_path: Path, documents: Path, embedder_ir: Path, vectors: bool) -> None:
    path = tmp_path / "store"
    report = index(path, [documents], IndexChoices(embedder_ir if vectors else None))
    assert (report.added, report.chunks) == (len(TEXTS), len(TEXTS))
    with Store(path) as store:
        embedder = embedder_of(store.settings)
        for question, name in QUESTIONS.items():
            vector = embedder.query(question) if embedder else None
            found = store.search(question, 2, vector)
            assert Path(found[0].path).name == name
            assert (found[0].vector is not None) == vectors
            if vectors:
                assert np.allclose(found[0].vector, embedder.documents([found[0].text])[0], atol=1e-5)
        # What only a vector finds: no word is the same.
        if vectors:
            assert store.search("zzz qqq", 3, embedder.query("zebras")) and not store.search("zzz qqq", 3)
    texts = {name: text for name, _, text in contents(path)}
    assert texts["bread.html"] == "Bread is made of flour, water and salt.\nAn oven bakes it."


@pytest.mark.parametrize("chunks", [9, 200])
def test_words_that_most_chunks_have_change_no_order(tmp_path: Path, chunks: int) -> None:
    """A third of the chunks has the rare word; of 9 they are fewer than a search lists, of 200 more."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(chunks):
        rare = "zebra " * (number % 9 + 1 if number % 3 == 0 else 0)
        (folder / f"{number}.txt").write_text(f"the animal {rare}{'word ' * (number % 5)}{number}")
    index(tmp_path / "store", [folder])
    with Store(tmp_path / "store") as store:
        zebras = [hit.path for hit in store.search("zebra", 9)]
        found = [hit.path for hit in store.search("the zebra is the animal", 9)]
        assert found[: len(zebras)] == zebras and len(found) == 9
        # The only word that the store has is in most chunks.
        assert len(store.search("unheard animal", 9)) == 9


def test_only_what_changed_is_read_again(tmp_path: Path, documents: Path, embedder_ir: Path) -> None:
    path = tmp_path / "store"
    index(path, [documents], IndexChoices(embedder_ir))
    before = path.read_bytes()
    report = index(path, [documents])
    assert (report.added, report.changed, report.removed, report.unchanged) == (0, 0, 0, len(TEXTS))
    assert path.read_bytes() == before
    (documents / "moon.md").unlink()
    (documents / "zebra.txt").write_text("The okapi has stripes on its legs.")
    (documents / "tree.txt").write_text("A tree has leaves.")
    (documents / "picture.png").write_bytes(b"\x89PNG")
    report = index(path, [documents])
    assert (report.added, report.changed, report.removed, report.unchanged) == (1, 1, 1, 3)
    assert report.left_out == {".png": 1}
    index(tmp_path / "anew", [documents], IndexChoices(embedder_ir))
    assert contents(path) == contents(tmp_path / "anew")
    # Another folder's documents stay.
    index(path, [write_texts(tmp_path / "more", {"sun.txt": "The sun shines."})])
    assert len(contents(path)) == 6


@given(st.text(st.sampled_from("a .\n"), max_size=300), st.integers(1, 40), st.integers(0, 20))
def test_chunks_cover_a_text(text: str, size: int, overlap: int) -> None:
    overlap = min(overlap, size // 2)
    # Letters that differ say where a piece lies.
    text = "".join(chr(0x4E00 + place) if letter == "a" else letter for place, letter in enumerate(text))
    pieces = split(text, size, overlap)
    assert all(0 < len(piece) <= size and piece == piece.strip() for piece in pieces)
    read = 0  # letters before this place are in the pieces so far
    for piece in pieces:
        found = [ord(letter) - 0x4E00 for letter in piece if ord(letter) >= 0x4E00]
        if found:
            assert text.count(piece) == 1
            begin = text.index(piece)
            assert not any(ord(letter) >= 0x4E00 for letter in text[read:begin])
            assert read - begin <= overlap and begin + len(piece) > read
            read = begin + len(piece)
    assert not any(ord(letter) >= 0x4E00 for letter in text[read:])


# Ends the process at its 20th document, in the middle of a transaction.
KILLED = """
import itertools, os, signal
from ovspec.cli import main
from ovspec.rag import Store
add, numbers = Store._add, itertools.count(1)
Store._add = lambda *of: os.kill(os.getpid(), signal.SIGKILL) if next(numbers) == 20 else add(*of)
main()
"""


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path: Path, embedder_ir: Path) -> None:
    texts = {f"{number:03}.txt": f"Text {number} is of number {number}. " * 40 for number in range(150)}
    folder, path = write_texts(tmp_path / "many", texts), tmp_path / "store"
    options = ["--embedding-model", embedder_ir, "--chunk-size", "200", "--chunk-overlap", "40"]
    words = ["-c", KILLED, "rag", "index", "--store", path, folder, *options]
    before = 0
    for _ in range(2):
        done = subprocess.run([sys.executable, *map(str, words)], check=False)
        assert done.returncode == -signal.SIGKILL
        assert before < num_documents(path) < before + 20
        before = num_documents(path)
    index(path, [folder])
    index(tmp_path / "whole", [folder], IndexChoices(embedder_ir, None, 200, 40))
    assert contents(path) == contents(tmp_path / "whole")


def num_documents(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM documents").fetchone()[0])


def test_damage_is_refused_in_a_line(tmp_path: Path, documents: Path, embedder_ir: Path) -> None:
    path = tmp_path / "store"
    index(path, [documents], IndexChoices(embedder_ir))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for cut in [whole[: len(whole) // 2], b"SQLite format 3\0" + whole[500:], rng.bytes(5000), b""]:
        path.write_bytes(cut)
        ask = ["rag", "ask", "--store", path, "-q", "zebra", "-m", "none"]
        assert str(path) in one_line(ovspec(*ask))
        if cut:
            assert str(path) in one_line(ovspec("rag", "index", "--store", path, documents))
            assert path.read_bytes() == cut
    damaged = bytearray(whole)
    for page in range(4096, len(whole), 4096):
        damaged[page : page + 64] = rng.bytes(64)
    path.write_bytes(damaged)
    assert "damaged" in one_line(ovspec("rag", "index", "--store", path, documents))
    # A database of somebody else.
    other = tmp_path / "other"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (a)")
    before = other.read_bytes()
    assert "is no store" in one_line(ovspec("rag", "index", "--store", other, documents))
    assert other.read_bytes() == before


def test_bad_input_writes_nothing(tmp_path: Path, documents: Path, embedder_ir: Path) -> None:
    path, empty = tmp_path / "store", tmp_path / "empty"
    empty.mkdir()

    def refused(*words: str | Path) -> str:
        line = one_line(ovspec("rag", "index", "--store", path, *words))
        assert not path.exists()
        return line

    assert "no documents there" in refused(empty)
    assert "no such file or folder" in refused(tmp_path / "nowhere")
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG")
    assert "is no document" in refused(picture)
    assert "--chunk-overlap 60: expected 0 to 50" in refused(
        documents, "--chunk-size", "100", "--chunk-overlap", "60"
    )
    assert "--pooling mean" in refused(documents, "--pooling", "mean")
    assert f"--embedding-model {empty}: it has no openvino_model.xml" in refused(
        documents, "--embedding-model", empty
    )
    pooled = shutil.copytree(embedder_ir, tmp_path / "pooled")
    for modes in ({"pooling_mode_max_tokens": True}, dict.fromkeys(POOLED, True)):
        (pooled / "1_Pooling" / "config.json").write_text(json.dumps(modes))
        line = refused(documents, "--embedding-model", pooled)
        assert "--pooling: " in line and " and ".join(modes) in line
    damaged = (("bad.pdf", b"%PDF-1.4 nothing"), ("no.pdf", b"text"))
    for name, data in (("bad.txt", b"\xff\xfe\0"), ("zero.md", b"a\0b"), *damaged):
        (documents / name).write_bytes(data)
        assert f"{name} is no document" in refused(documents)
        (documents / name).unlink()
    assert "no such file" in one_line(ovspec("rag", "ask", "--store", path, "-q", "a", "-m", "none"))


def test_a_store_has_one_model_and_one_size(tmp_path: Path, documents: Path, embedder_ir: Path) -> None:
    path, words = tmp_path / "store", tmp_path / "words"
    index(path, [documents], IndexChoices(embedder_ir))
    index(words, [documents])
    other = embedding_model(tmp_path / "other", seed=1)
    before = path.read_bytes()
    (documents / "new.txt").write_text("new")
    for store, option, value, said in (
        (path, "--embedding-model", other, "of another model"),
        (path, "--pooling", "cls", "of another model"),
        (path, "--chunk-size", 500, "made with 1000"),
        (words, "--embedding-model", embedder_ir, "words alone"),
    ):
        line = one_line(ovspec("rag", "index", "--store", store, documents, option, value))
        assert said in line
    ask = ["rag", "ask", "--store", path, "-q", "zebra", "-m", "none"]
    assert "of another model" in one_line(ovspec(*ask, "--embedding-model", other))
    assert path.read_bytes() == before
    # The same model in another place.
    moved = shutil.copytree(embedder_ir, tmp_path / "moved")
    assert index(path, [documents], IndexChoices(moved)).added == 1


def test_a_search_sees_the_store_at_one_moment(
    tmp_path: Path, documents: Path, embedder_ir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document goes, in another process, between finding its chunk and reading it."""
    monkeypatch.setattr("ovspec.rag.database._BUSY_SECONDS", 0)
    path = tmp_path / "store"
    index(path, [documents], IndexChoices(embedder_ir))
    zebra = str(documents.resolve() / "zebra.txt")
    with Store(path) as store, Store(path) as writer:
        before, read = [hit.text for hit in store.search("zebra moon", 9)], store._hit

        def removed_meanwhile(chunk: int, score: float) -> Hit:
            with pytest.raises(InvalidValueError, match="another process"):
                writer.write([], [zebra])
            return read(chunk, score)

        monkeypatch.setattr(store, "_hit", removed_meanwhile)
        assert [hit.text for hit in store.search("zebra moon", 9)] == before and len(before) == 2
        writer.write([], [zebra])  # what was refused has left nothing open
        assert zebra not in store.documents()


@pytest.mark.parametrize("module", ["apsw", "sqlite3"])
def test_threads_share_a_store(
    tmp_path: Path, documents: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    if module == "sqlite3":
        monkeypatch.setattr("ovspec.rag.database.find_spec", lambda name: None)
    index(tmp_path / "store", [documents])
    store = Store(tmp_path / "store")
    want = [hit.path for hit in store.search("zebra moon ship", 9)]
    with ThreadPoolExecutor(6) as pool:
        found = pool.map(lambda _: [hit.path for hit in store.search("zebra moon ship", 9)], range(300))
        assert all(paths == want for paths in found) and len(want) == 3
    store.close()
    with pytest.raises(InvalidValueError, match="it was closed; open it again"):
        store.search("zebra", 1)


def test_two_processes_may_make_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, begin = tmp_path / "store", Database.transaction

    def made_meanwhile(database: Database) -> AbstractContextManager[None]:
        monkeypatch.undo()
        Store.create(path, _settings()).close()
        return begin(database)

    monkeypatch.setattr(Database, "transaction", made_meanwhile)
    with pytest.raises(InvalidValueError, match="another process made it meanwhile"):
        Store.create(path, _settings())
    Store(path).close()


def test_more_documents_than_vectors_are_found_of(tmp_path: Path, documents: Path, embedder_ir: Path) -> None:
    path = tmp_path / "store"
    index(path, [documents], IndexChoices(embedder_ir))
    with Store(path) as store:
        vector = np.ones(48, np.float32)
        assert len(store.search("zebra", 4096, vector)) == len(TEXTS)
        with pytest.raises(InvalidValueError, match=r"num_documents=4097: expected 4096 at most"):
            store.search("zebra", 4097, vector)
        assert store.search("zebra", 4097)  # words have no such bound
        with pytest.raises(InvalidValueError, match=r"shape \(47,\), expected \(48,\)"):
            store.search("zebra", 1, vector[1:])
    index(tmp_path / "words", [documents])
    with Store(tmp_path / "words") as store, pytest.raises(InvalidValueError, match="words alone"):
        store.search("zebra", 1, vector)


@pytest.mark.parametrize("markup", ["<![if x]>", "<![foo[ bar ]]>", "<![ ]>", "<![&#x>", "<![CDATA[x]]>"])
def test_html_with_marks_that_no_browser_shows(tmp_path: Path, markup: str) -> None:
    folder = write_texts(tmp_path / "html", {"a.html": f"<p>zebra</p>{markup}<p>moon</p>"})
    index(tmp_path / "store", [folder])
    assert [text for _, _, text in contents(tmp_path / "store")] == ["zebra\nmoon"]


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    folder, path = write_texts(tmp_path / "notes"), tmp_path / "store"
    odd = folder / os.fsdecode(b"\xff.txt")
    odd.write_text("zebra")
    assert "its name is not UTF-8" in one_line(ovspec("rag", "index", "--store", path, folder))
    assert not path.exists()
    odd.unlink()
    store = tmp_path / os.fsdecode(b"\xff.db")
    assert "its name is not UTF-8" in one_line(ovspec("rag", "index", "--store", store, folder))


def test_a_folder_may_lose_its_last_document(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "notes")
    index(tmp_path / "store", [folder])
    for path in folder.iterdir():
        path.unlink()
    assert index(tmp_path / "store", [folder]).removed == len(TEXTS)
    assert contents(tmp_path / "store") == []
    with pytest.raises(InvalidValueError, match="no documents there"):  # nothing was there, nothing is
        index(tmp_path / "store", [folder])


@pytest.mark.parametrize(("code", "text"), [("", "A"), ("0000", ""), ("D800", "\ufffd"), ("D83DDE00", "😀")])
def test_a_pdf_whose_font_names_no_character(tmp_path: Path, code: str, text: str) -> None:
    write_pdf(tmp_path / "pdfs", b"(A)", f"1 beginbfchar <41> <{code}> endbfchar" if code else "")
    index(tmp_path / "store", [tmp_path / "pdfs"])
    assert "".join(text for _, _, text in contents(tmp_path / "store")) == text


def test_a_pdf_has_text(tmp_path: Path) -> None:
    write_pdf(tmp_path / "pdfs", b"(Lanterns glow at night)")
    index(tmp_path / "store", [tmp_path / "pdfs"])
    with Store(tmp_path / "store") as store:
        assert store.search("lanterns", 1)[0].text == "Lanterns glow at night"


def write_pdf(folder: Path, shown: bytes, to_unicode: str = "") -> None:
    """A page with a text; `to_unicode`: what its font says of characters."""
    pypdf = pytest.importorskip("pypdf")
    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(300, 300)
    font = pypdf.generic.DictionaryObject(
        {
            pypdf.generic.NameObject("/Type"): pypdf.generic.NameObject("/Font"),
            pypdf.generic.NameObject("/Subtype"): pypdf.generic.NameObject("/Type1"),
            pypdf.generic.NameObject("/BaseFont"): pypdf.generic.NameObject("/Helvetica"),
        }
    )
    name = pypdf.generic.NameObject
    if to_unicode:
        table = pypdf.generic.DecodedStreamObject()
        table.set_data(f"1 begincodespacerange <00> <ff> endcodespacerange {to_unicode}".encode())
        font[name("/ToUnicode")] = writer._add_object(table)
    fonts = pypdf.generic.DictionaryObject({name("/F1"): font})
    page[name("/Resources")] = pypdf.generic.DictionaryObject({name("/Font"): fonts})
    stream = pypdf.generic.DecodedStreamObject()
    stream.set_data(b"BT /F1 12 Tf 20 200 Td %b Tj ET" % shown)
    page[name("/Contents")] = stream
    folder.mkdir()
    writer.write(folder / "lantern.pdf")


def test_python_without_the_extension_says_what_to_install(
    tmp_path: Path, documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ovspec.rag.database.find_spec", lambda name: None)
    with Store.create(tmp_path / "store", _settings()) as store:  # words alone need nothing
        assert not store.search("a", 1)
    path = tmp_path / "vectors"
    with pytest.raises(InvalidValueError, match=r"sqlite-vec.*ovspec\[rag\]"):
        Store.create(path, _settings(dimensions=4))
    assert not path.exists()


def _settings(dimensions: int = 0) -> StoreSettings:
    model = EmbeddingModel("nowhere", "cls", "0", dimensions) if dimensions else None
    return StoreSettings(100, 20, model)
