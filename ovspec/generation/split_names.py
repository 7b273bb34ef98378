"""A tokenizer to which the name of a special token is text where a mark stands in it."""

from __future__ import annotations

import shutil
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import openvino_genai

from ovspec.generation.word_cache import forget_words

_SPLIT = "SpecialTokensSplit"


def tokenizer_without_marks(folder: Path, mark: str) -> openvino_genai.Tokenizer:
    """The tokenizer of a folder, which drops `mark` behind its search for special tokens.

    Raises:
        ValueError: the tokenizer searches for them in another way.
    """
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        weights = copy / "openvino_tokenizer.bin"
        shutil.copyfile(folder / weights.name, weights)
        tree = ET.parse(folder / "openvino_tokenizer.xml")
        with weights.open("ab") as file:
            _drop(tree.getroot(), mark.encode(), file.tell())
            file.write(mark.encode() + b"\0")
        forget_words(tree.getroot())
        tree.write(copy / "openvino_tokenizer.xml")
        return openvino_genai.Tokenizer(str(copy))


def _drop(root: ET.Element, mark: bytes, offset: int) -> None:
    """Put an operation behind the search that replaces `mark`, at `offset` of the weights, by nothing."""
    layers, edges = root.find("layers"), root.find("edges")
    assert layers is not None and edges is not None
    found = [layer for layer in layers if layer.get("type") == _SPLIT]
    ports = [port.get("id", "") for layer in found for port in layer.findall("output/port")]
    if len(ports) != 6:
        raise ValueError("it does not search for special tokens as OpenVINO Tokenizers of this version do")
    search = found[0].get("id", "")
    ids = [str(max(int(layer.get("id", 0)) for layer in layers) + 1 + more) for more in range(3)]
    # Begins, ends, characters, and which of the pieces are special tokens.
    for edge in edges:
        if edge.get("from-layer") == search and edge.get("from-port") in ports[2:]:
            edge.set("from-port", str(6 + ports.index(edge.get("from-port", "")) - 2))
            edge.set("from-layer", ids[2])
    sizes = len(mark), 0
    for number, size in zip(ids, sizes, strict=False):
        layers.append(_constant(number, size, offset + (0 if size else len(mark))))
    layers.append(_replacement(ids[2], sizes))
    for to_port, port in enumerate(ports[2:]):
        _connect(edges, search, port, ids[2], to_port)
    for to_port, number in enumerate(ids[:2], 4):
        _connect(edges, number, "0", ids[2], to_port)


def _constant(number: str, size: int, offset: int) -> ET.Element:
    layer = ET.Element("layer", id=number, name=f"mark_{number}", type="Const", version="opset1")
    # A constant without elements has a byte all the same.
    data = ET.SubElement(layer, "data", element_type="u8", shape=str(size), offset=str(offset))
    data.set("size", str(size or 1))
    _port(ET.SubElement(layer, "output"), 0, "U8", size)
    return layer


def _replacement(number: str, sizes: tuple[int, int]) -> ET.Element:
    layer = ET.Element(
        "layer", id=number, name="without_marks", type="RegexNormalization", version="extension"
    )
    ET.SubElement(layer, "data", global_replace="true")
    kinds = ("I32", "I32", "U8", "BOOL")
    given, made = ET.SubElement(layer, "input"), ET.SubElement(layer, "output")
    for number_of_port, kind in enumerate(kinds):
        _port(given, number_of_port, kind, -1)
        _port(made, 6 + number_of_port, kind, -1)
    for number_of_port, size in enumerate(sizes, 4):
        _port(given, number_of_port, "U8", size)
    return layer


def _port(parent: ET.Element, number: int, precision: str, size: int) -> None:
    port = ET.SubElement(parent, "port", id=str(number), precision=precision)
    ET.SubElement(port, "dim").text = str(size)


def _connect(edges: ET.Element, layer: str, port: str, to_layer: str, to_port: int) -> None:
    ends = {"from-layer": layer, "from-port": port, "to-layer": to_layer, "to-port": str(to_port)}
    edges.append(ET.Element("edge", ends))
