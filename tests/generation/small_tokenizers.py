"""Small tokenizers of the kinds that language models have, trained on a few lines and converted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import openvino as ov
from openvino_tokenizers import convert_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

LINES = [
    "Once upon a time, there was a little girl named Lily. She didn't want to go; I'm done, she said!",
    "It 's here , isn 't it ? Yes ! I ' m . they 're we 've\n\n  def f(x): return x + 1",
    "안녕 하세요 世界 é ü ñ 🙂 naïve café",
] * 20
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)


def _byte_level(cleans: bool) -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=CONTROL[0],
        additional_special_tokens=CONTROL[1:],
        clean_up_tokenization_spaces=cleans,
        chat_template=TEMPLATE,
    )


def _sentencepiece() -> PreTrainedTokenizerFast:
    """As of Llama 2: BPE whose spaces are U+2581, and bytes of characters that it does not know."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *CONTROL[1:]]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special + fallback, limit_alphabet=60, show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    described = json.loads(made.to_str())
    # The bytes are ordinary tokens.
    described["added_tokens"] = [one for one in described["added_tokens"] if one["content"] in special]
    made = Tokenizer.from_str(json.dumps(described))
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=CONTROL[1:],
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


def _unigram() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    special = ["<unk>", "</s>", *CONTROL[1:]]
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=CONTROL[1:],
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


_SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]


def _word_pieces(vocabulary: list[str] | None = None) -> PreTrainedTokenizerFast:
    """Trained, or with a vocabulary behind the special tokens."""
    if vocabulary is None:
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    else:
        ids = {name: number for number, name in enumerate([*_SPECIAL, *vocabulary])}
        made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    if vocabulary is None:
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=_SPECIAL, show_progress=False)
        made.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        clean_up_tokenization_spaces=True,
    )


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte-level": lambda: _byte_level(False),
    "byte-level that cleans up": lambda: _byte_level(True),
    "SentencePiece": _sentencepiece,
    "Unigram": _unigram,
    "WordPiece": _word_pieces,
}


def write(kind: str, folder: Path, vocabulary: list[str] | None = None) -> None:
    """A tokenizer in both forms, that of transformers and that of OpenVINO; word pieces of a vocabulary."""
    made = KINDS[kind]() if vocabulary is None else _word_pieces(vocabulary)
    made.save_pretrained(folder)
    for name, model in zip(
        ("tokenizer", "detokenizer"), convert_tokenizer(made, with_detokenizer=True), strict=True
    ):
        ov.save_model(model, folder / f"openvino_{name}.xml")
