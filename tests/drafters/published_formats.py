"""Published formats of heads: what each is called, a checkpoint of it, and what happens to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from drafters import dflash_models, mtp_models, test_hydra, test_medusa
from drafters.correction_models import RANK
from drafters.dflash_models import BOUNDARIES, MASK
from drafters.eagle3_models import HIDDEN, LAYERS, VOCAB, Reference
from drafters.eagle31_models import ParallelReference, Reference31
from safetensors.torch import load_file, save_file

from ovspec_models.folder.head_info import FORMAT

_SHARED = (torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN))
_WINDOWS = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 32, "use_sliding_window": True}
Save = Callable[[Path], Path]


def eagle3(**said: Any) -> Save:
    """With the weights of the further norms and layers that it says."""
    return lambda folder: Reference31(_SHARED[0], **said).save(folder)


def of_speculators(kind: str, **said: Any) -> Save:
    """With the weights of an EAGLE-3 head, for a kind whose weights are not looked at."""
    return eagle3(**{FORMAT: kind, **said})


def by_architecture(name: str) -> Save:
    return eagle3(architectures=[name])


def dflash(**said: Any) -> Save:
    return lambda folder: dflash_models.Reference(*_SHARED).save(folder, **said)


def dflash_of_speculators(**said: Any) -> Save:
    block = {"mask_token_id": MASK, "aux_hidden_state_layer_ids": list(BOUNDARIES)}
    return dflash(**{FORMAT: "dflash", "dflash_config": None, **block, **said})


def form(name: str, **said: Any) -> Save:
    """A form of DFlash that corrects its logits."""
    return lambda folder: dflash_models.Reference(*_SHARED, form=name).save(folder, **said)


def mtp_of_speculators(folder: Path) -> Path:
    return mtp_models.save_as_speculators(mtp_models.Reference("deepseek", *_SHARED), folder)


def mtp(kind: str, more: str = "") -> Save:
    added = {f"model.layers.{LAYERS}.{more}": torch.zeros(4, 4)} if more else {}
    return lambda folder: mtp_models.Reference(kind, *_SHARED).save(folder, added)


def hydra(form: str, **said: Any) -> Save:
    return lambda folder: test_hydra.Reference(form, _SHARED[0]).save(folder, **said)


def with_weights(save: Save, without: str = "", **more: torch.Tensor) -> Save:
    def changed(folder: Path) -> Path:
        arrays = {
            name: array.clone() for name, array in load_file(save(folder) / "model.safetensors").items()
        }
        arrays = {name: array for name, array in arrays.items() if name != without}
        save_file({**arrays, **more}, folder / "model.safetensors")
        return folder

    return changed


@dataclass(frozen=True)
class Format:
    """A row of the table.

    Attributes:
        name: of the format.
        example: a published head, as it is named.
        how: it is recognised.
        kind: asked for.
        save: writes a checkpoint of it.
        refused: words of the refusal; none: it drafts.
    """

    name: str
    example: str
    how: str
    kind: str
    save: Save
    refused: str = ""

    @property
    def row(self) -> str:
        example = f"`{self.example}`" if self.example else ""
        happens = f"refused: {self.refused}" if self.refused else "drafts"
        return f"| {self.name} | {example} | {self.how} | {happens} |\n"


FORMATS = (
    Format(
        "EAGLE-3 of its authors, SpecForge",
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "`LlamaForCausalLMEagle3`",
        "eagle3",
        by_architecture("LlamaForCausalLMEagle3"),
    ),
    Format(
        "EAGLE-3 of AngelSlim",
        "AngelSlim/Qwen3-8B_eagle3",
        "`Eagle3LlamaForCausalLM`",
        "eagle3",
        by_architecture("Eagle3LlamaForCausalLM"),
    ),
    Format("EAGLE-3.1: a norm of all states", "", "`norm_before_fc`", "eagle3", eagle3(norm_before_fc=True)),
    Format("EAGLE-3.1: a norm of each boundary", "", "`fc_norm`", "eagle3", eagle3(fc_norm=True)),
    Format(
        "EAGLE-3.1: the state behind the last norm goes into the next token",
        "",
        "`norm_output`",
        "eagle3",
        eagle3(norm_output=True),
    ),
    Format(
        "norms of queries and keys", "", "weights `q_norm`, `k_norm`", "eagle3", eagle3(model_type="qwen3")
    ),
    Format("several layers", "", "`num_hidden_layers`", "eagle3", eagle3(num_hidden_layers=3)),
    Format(
        "biases", "", "`attention_bias`, `mlp_bias`", "eagle3", eagle3(attention_bias=True, mlp_bias=True)
    ),
    Format(
        "own embedding",
        "",
        "weight `embed_tokens`",
        "eagle3",
        with_weights(eagle3(), **{"embed_tokens.weight": _SHARED[0].clone()}),
    ),
    Format(
        "EAGLE-3 of `speculators`",
        "RedHatAI/Qwen3-8B-speculator.eagle3",
        f"`{FORMAT}` `eagle3`",
        "eagle3",
        of_speculators("eagle3", norm_before_residual=False),
    ),
    Format(
        "the same, without a setting that its readers take differently",
        "",
        "no `norm_before_residual`",
        "eagle3",
        of_speculators("eagle3"),
        "config.json does not say norm_before_residual",
    ),
    Format(
        "EAGLE-3 with the target's output layer",
        "",
        "no weight `lm_head`, `d2t`",
        "eagle3",
        lambda folder: Reference(_SHARED[0], output=_SHARED[1]).save(folder),
    ),
    Format(
        "EAGLE-3 with tokens of its own, without an output layer",
        "",
        "weight `d2t`, no `lm_head`",
        "eagle3",
        with_weights(eagle3(), "lm_head.weight"),
        "has no weight lm_head.weight",
    ),
    Format(
        "EAGLE-3 whose two tables of tokens differ",
        "",
        "weights `d2t`, `t2d`",
        "eagle3",
        with_weights(eagle3(), t2d=torch.ones(VOCAB, dtype=torch.bool)),
        "d2t and t2d name other tokens of the target",
    ),
    Format(
        "EAGLE 1, 2",
        "yuhuili/EAGLE-LLaMA3-Instruct-8B",
        "an architecture with `Eagle`",
        "eagle3",
        by_architecture("EagleModel"),
        "versions 1 and 2 read the last state alone",
    ),
    Format(
        "P-EAGLE of `speculators`",
        "",
        "`speculators_model_type` `peagle`",
        "eagle3",
        lambda folder: ParallelReference(_SHARED[0]).save(folder),
    ),
    Format(
        "P-EAGLE as vLLM reads it",
        "amazon/GPT-OSS-20B-P-EAGLE",
        "`LlamaForCausalLMEagle3` with `pard_token` or `ptd_token_id`",
        "eagle3",
        lambda folder: ParallelReference(_SHARED[0], **ParallelReference.of_vllm).save(folder),
    ),
    Format(
        "P-EAGLE of SpecForge, whose training does not write the token of its masks",
        "",
        "`PEagleDraftModel`",
        "eagle3",
        lambda folder: ParallelReference(
            _SHARED[0], **{**ParallelReference.of_vllm, "architectures": ["PEagleDraftModel"]}
        ).save(folder, ptd_token_id=None),
        "no mask_token_id, expected one token that stands for those to come",
    ),
    Format(
        "P-EAGLE without what stands for unknown states",
        "",
        "no weight `mask_hidden`",
        "eagle3",
        with_weights(lambda folder: ParallelReference(_SHARED[0]).save(folder), "mask_hidden"),
        "has no weight mask_hidden",
    ),
    Format(
        "P-EAGLE as an EAGLE-3 head with masks",
        "",
        "weight `mask_hidden`",
        "eagle3",
        with_weights(eagle3(), mask_hidden=torch.zeros(1, 1, 3 * HIDDEN)),
        "has the weight mask_hidden, which this kind of head does not read",
    ),
    Format("DFlash of z-lab", "z-lab/Qwen3-8B-DFlash-b16", "`DFlashDraftModel`", "dflash", dflash()),
    Format("DFlash of `speculators`", "", f"`{FORMAT}` `dflash`", "dflash", dflash_of_speculators()),
    Format(
        "DFlash that drafts at the anchor",
        "",
        "`sample_from_anchor`",
        "dflash",
        dflash_of_speculators(sample_from_anchor=True),
    ),
    Format(
        "DFlash, DSpark, DFlash2, XPress of `speculators` with windows",
        "",
        "`layer_types`, `sliding_window`",
        "dflash",
        dflash_of_speculators(**_WINDOWS),
    ),
    Format(
        "the same of others",
        "",
        "`layer_types`",
        "dflash",
        dflash(**_WINDOWS),
        "windows that speculators has not written begin elsewhere for each row of a block",
    ),
    Format(
        "DFlash with a vocabulary of its own",
        "",
        "`draft_vocab_size`, weights `lm_head`, `d2t`",
        "dflash",
        lambda folder: dflash_models.Reference(*_SHARED, own=True).save(folder),
    ),
    Format(
        "DSpark of `speculators`",
        "",
        "`speculators_model_type` `dspark`",
        "dflash",
        form("dspark, rnn", **{FORMAT: "dspark"}),
    ),
    Format(
        "DSpark of its authors, with copies of the target's embedding and output layer",
        "deepseek-ai/dspark_qwen3_4b_block7",
        "`Qwen3DSparkModel`, weights `embed_tokens`, `lm_head`",
        "dflash",
        with_weights(
            form("dspark, vanilla", **dflash_models.dspark_settings("top", RANK)),
            **{"embed_tokens.weight": _SHARED[0].clone(), "lm_head.weight": _SHARED[1].clone()},
        ),
    ),
    Format(
        "DSpark of SpecForge",
        "RadixArk/Qwen3.8-27B-DSpark",
        "`DSparkDraftModel`, `markov_rank` in `dflash_config`",
        "dflash",
        form("dspark, vanilla", **dflash_models.dspark_settings("nested", RANK)),
    ),
    Format(
        "DSpark without a Markov head",
        "",
        "`markov_rank` 0",
        "dflash",
        dflash(
            architectures=["DSparkDraftModel"],
            markov_rank=0,
            enable_confidence_head=False,
            sample_from_anchor=False,
        ),
    ),
    Format(
        "DSpark whose confidence reads a Markov head that is not there",
        "",
        "`markov_rank` 0",
        "dflash",
        form("dspark, vanilla", markov_rank=0, enable_confidence_head=True),
        "confidence_head_with_markov of config.json is true, and markov_rank 0",
    ),
    Format(
        "DFlash2 of `speculators`",
        "",
        "`speculators_model_type` `dflash2`",
        "dflash",
        form("dflash2", **{FORMAT: "dflash2"}),
    ),
    Format(
        "DFlash2 of z-lab",
        "",
        "`DFlash2DraftModel`",
        "dflash",
        form("dflash2"),
    ),
    Format(
        "XPress of `speculators`",
        "",
        "`speculators_model_type` `xpress`",
        "dflash",
        form("xpress", **{FORMAT: "xpress"}),
    ),
    Format(
        "Domino",
        "",
        "an architecture with `Domino`",
        "dflash",
        by_architecture("DominoDraftModel"),
        "a recurrent layer corrects its blocks",
    ),
    Format(
        "Domino as z-lab's DFlash",
        "",
        "`projector_type` in `dflash_config`",
        "dflash",
        dflash(dflash_config={**dflash_models.CONFIG["dflash_config"], "projector_type": "domino"}),
        "dflash_config.projector_type of config.json is 'domino', which is not known",
    ),
    Format(
        "LiLiCorr",
        "",
        "an architecture with `LiLiCorr`",
        "dflash",
        by_architecture("LiLiCorrDraftModel"),
        "a lattice corrects its blocks",
    ),
    Format("MTP with DeepSeek's names", "", "`num_nextn_predict_layers`", "mtp", mtp("deepseek")),
    Format("MTP with Qwen's names", "Qwen/Qwen3.5-4B", "`mtp_num_hidden_layers`", "mtp", mtp("qwen")),
    Format(
        "MTP with latent attention",
        "deepseek-ai/DeepSeek-V3",
        "weights `kv_a_proj_with_mqa`",
        "mtp",
        mtp("deepseek", "self_attn.kv_a_proj_with_mqa.weight"),
        "its layer has multi-head latent attention",
    ),
    Format(
        "MTP with experts",
        "zai-org/GLM-4.5-Air",
        "weights `mlp.experts`",
        "mtp",
        mtp("deepseek", "mlp.experts.0.up_proj.weight"),
        "its layer has experts",
    ),
    Format(
        "MTP of `speculators`",
        "",
        "`speculators_model_type` `mtp`",
        "mtp",
        mtp_of_speculators,
    ),
    Format(
        "Medusa",
        "FasterDecoding/medusa-vicuna-7b-v1.3",
        "`medusa_num_heads`",
        "medusa",
        lambda folder: test_medusa.Reference().save(folder),
    ),
    Format("Hydra", "", "`hydra_head_arch` `mlp`", "hydra", hydra("mlp")),
    Format(
        "Hydra++",
        "ankner/hydra-vicuna-7b-v1.3",
        "`hydra_head_arch` `prefix-mlp`",
        "hydra",
        hydra("prefix-mlp"),
    ),
    Format(
        "Hydra over attention",
        "",
        "`hydra_head_arch` `cross-attn`",
        "hydra",
        hydra("mlp", hydra_head_arch="cross-attn"),
        "hydra_head_arch of config.json is 'cross-attn', which is not known",
    ),
)
