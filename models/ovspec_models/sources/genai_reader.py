"""Lets openvino_genai write the IR of a GGUF file beside it; run as a process by `gguf_folder`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
import openvino_tokenizers
from openvino import opset15 as ops


def main(file: str) -> None:
    """Write model, tokenizer and detokenizer.

    The constructor of the pipeline also compiles, which takes as long again and as much memory as the
    weights; at a device that does not exist it ends behind the writing.
    """
    folder = Path(file).parent
    try:
        openvino_genai.LLMPipeline(file, "NONE", ATTENTION_BACKEND="SDPA", enable_save_ov_model=True)
    except RuntimeError:
        if not (folder / "openvino_model.xml").is_file():
            raise
    take_long_texts(folder / "openvino_tokenizer.xml")


def take_long_texts(xml: Path) -> None:
    """Lift a tokenizer's limit: the reader's cuts the begin of a text of more than 8,192 tokens off."""
    core = ov.Core()
    core.add_extension(openvino_tokenizers._ext_path)
    model = core.read_model(xml)
    for node in model.get_ops():
        if node.get_type_name() == "Minimum" and node.get_element_type() == ov.Type.i32:
            limit = ops.constant(np.array(2**31 - 1, np.int32))
            node.input(1).replace_source_output(limit.output(0))
    whole = xml.with_name("whole.xml")
    ov.save_model(model, whole, compress_to_fp16=False)
    del model, core
    whole.replace(xml)
    whole.with_suffix(".bin").replace(xml.with_suffix(".bin"))


if __name__ == "__main__":
    main(sys.argv[1])
