"""The text embedding of a folder with pictures, joined to the language model that reads its rows."""

from __future__ import annotations

import openvino as ov

from ovspec_transforms.graph import find_input, let_read

INPUT_IDS = "input_ids"
#: What the text embedding makes of the tokens of a pass.
TEXT_ROWS = "text_rows"
_ROWS_READ = "inputs_embeds"
TOKEN_TYPES = "token_type_ids"


def join_text_embedding(model: ov.Model, embedding: ov.Model) -> None:
    """Let a language model read `input_ids`, looked up in the text embedding beside it.

    optimum-intel writes both as models of their own, for whoever puts rows of pictures between.

    Args:
        model: stateful, with the input `inputs_embeds`; changed in place.
        embedding: with one input of token ids; what it holds becomes a part of `model`.

    Raises:
        ValueError: one of them has other inputs.
    """
    given = find_input(model, _ROWS_READ)
    if given is None or len(embedding.inputs) != 1 or len(embedding.outputs) != 1:
        raise ValueError(
            f"the language model does not read the rows of its text embedding ({_ROWS_READ}): it was "
            "exported in a form that is not known"
        )
    tokens = embedding.get_parameters()[0]
    tokens.output(0).set_names({INPUT_IDS})
    tokens.set_friendly_name(INPUT_IDS)
    rows = embedding.get_results()[0].input(0).get_source_output()
    rows.set_names({TEXT_ROWS})
    let_read(given.output(0), rows)
    model.remove_parameter(given)
    model.add_parameters([tokens])
    if (types := find_input(model, TOKEN_TYPES)) is not None:
        # Sizes that the graph takes of them would not be those of the rows of a pass.
        for port in list(types.output(0).get_target_inputs()):
            if port.get_node().get_type_name() == "ShapeOf":
                port.replace_source_output(tokens.output(0))
    model.validate_nodes_and_infer_types()
