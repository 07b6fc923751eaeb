"""Tokenizers of a few hundred tokens, made on the fly, in the two kinds that generate text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from keepwarm.chat.tokenizer import Tokenizer as ChatTokenizer
from keepwarm.chat.tokenizer import load_tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PIECES_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    " {{ message['content'] }}{{ eos_token }}{% else %}[INST] {{ message['content'] }} [/INST]{% endif %}"
    "{% endfor %}"
)
_CORPUS = [
    "the quick brown fox says hello to the other fox, and the other says hello back",
    "user assistant system tool answer question hello there 1234 don't can't won't",
    "größer schön 日本語 日本 héllo 🎉🎉 \n\n  indented\n    more\tcode = call(x, y)",
]


def byte_level_backend() -> Tokenizer:
    """GPT-2's kind: bytes, merged; ChatML's control tokens and one that is special to nobody."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=1,
        show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(_CORPUS, trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    return backend


def pieces_backend() -> Tokenizer:
    """SentencePiece's kind: visible spaces, one put before every text, bytes where letters lack."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?[]/<>|"]
    merges = [
        ("▁", "h"),
        ("e", "l"),
        ("l", "o"),
        ("▁h", "el"),
        ("▁hel", "lo"),
        ("▁", "▁"),
        ("t", "h"),
        ("▁", "w"),
    ]
    whole = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    tokens = [*whole, *("".join(pair) for pair in merges)]
    backend = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    return backend


def write_folder(
    folder: Path, backend: Tokenizer, *, chat_template: Any = None, **tokenizer_config: Any
) -> Path:
    """A Hugging Face folder of this tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if chat_template is not None:
        tokenizer_config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder


def chatml_tokenizer(folder: Path, *, template: str = CHATML) -> ChatTokenizer:
    """The byte-level one with this chat template."""
    return load_tokenizer(
        str(write_folder(folder, byte_level_backend(), chat_template=template, eos_token="<|im_end|>"))
    )


def pieces_tokenizer(folder: Path, *, template: str = PIECES_TEMPLATE) -> ChatTokenizer:
    """The SentencePiece-like one with this chat template."""
    return load_tokenizer(
        str(write_folder(folder, pieces_backend(), chat_template=template, bos_token="<s>", eos_token="</s>"))
    )


def write_gguf(file: Path, metadata: dict[str, Any]) -> str:
    """A GGUF file of this metadata and no tensors."""
    import gguf

    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_uint32("llama.context_length", 512)
    for key, value in metadata.items():
        add = {
            str: writer.add_string,
            int: writer.add_uint32,
            bool: writer.add_bool,
            list: writer.add_array,
        }[type(value)]
        add(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return str(file)
