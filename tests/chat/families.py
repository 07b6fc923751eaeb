"""Well-known families of models in small: a tokenizer of each kind with its template's habits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers import Tokenizer as Backend

from keepwarm.chat.messages import Message, Part, Role, Text
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.chat.tokenizer_parts import TokenizerParts, stop_tokens

CORPUS = [
    "The cache keeps what was read before, so that nothing is read twice.",
    "def read(self, value: int) -> str:\n    return self.cache[value]  # warm\n\n",
    "user assistant system tool tool_call tool_response name arguments You are helpful.",
    "Straße, naïve café, 你好世界 你好, привет мир, 🙂🙃 emojis 12345 67890",
    "    indented\n\t\ttabs\n\n\nblank lines   and   spaces  ",
]
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content"
    " + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA_TOKENS = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{- raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
MISTRAL_TOKENS = ("<s>", "</s>")
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '[INST] ' + message.content + ' [/INST]' }}{% elif message.role == 'assistant' %}"
    "{{ ' ' + message.content | trim + eos_token }}{% else %}"
    "{{ raise_exception('Only user and assistant roles') }}{% endif %}{% endfor %}"
)
THINKING = """{%- if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last %}
{{- '<think>\n' + (message.reasoning_content or '').strip('\n') + '\n</think>\n\n' }}{% endif %}
{{- message.content.split('</think>')[-1].lstrip('\n') }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Qwen 3's habits: thoughts only after the last question, text split at `</think>`, tools."""


def message(role: Role, *parts: str | Part) -> Message:
    """A message; strings are its texts."""
    return Message(role=role, parts=tuple(Text(text=p) if isinstance(p, str) else p for p in parts))


@cache
def _byte_level_json(special: tuple[str, ...], plain: tuple[str, ...], llama3: bool) -> str:
    backend = Backend(models.BPE(ignore_merges=llama3))
    if llama3:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return backend.to_str()


@cache
def _sentencepiece_json(special: tuple[str, ...], prefix: bool) -> str:
    backend = Backend(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", *special],
        show_progress=False,
        initial_alphabet=["▁"],
        limit_alphabet=60,
    )
    words = pre_tokenizers.Split("▁", behavior="merged_with_next")
    backend.pre_tokenizer = words
    backend.train_from_iterator(CORPUS, trainer)
    description = json.loads(backend.to_str())
    vocab = description["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    backend = Backend.from_str(json.dumps(description))
    backend.pre_tokenizer = None
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend.to_str()


def byte_level(
    special: Sequence[str] = CHATML_TOKENS, plain: Sequence[str] = (), *, llama3: bool = False
) -> Backend:
    """Byte-level BPE of 600 tokens."""
    return Backend.from_str(_byte_level_json(tuple(special), tuple(plain), llama3))


def sentencepiece(special: Sequence[str] = MISTRAL_TOKENS, *, prefix: bool = True) -> Backend:
    """SentencePiece-like BPE with byte fallback; most of the letters outside ASCII are bytes."""
    return Backend.from_str(_sentencepiece_json(tuple(special), prefix))


def tokenizer_of(
    backend: Backend, template: str | None = CHATML, *, bos: str = "", eos: str = ""
) -> Tokenizer:
    """Ours around a copy of a tiny backend, so that the given one stays as it was."""
    copy = Backend.from_str(backend.to_str())
    return Tokenizer(
        TokenizerParts(
            origin="tiny",
            backend=copy,
            bos_token=bos,
            eos_token=eos,
            stop_tokens=stop_tokens(copy, [copy.token_to_id(eos)] if eos else []),
            chat_templates={} if template is None else {"default": template},
        )
    )


def family(name: str) -> tuple[Backend, Tokenizer]:
    """An untouched backend to compare with, and our tokenizer with the family's template."""
    backend, template, bos, eos = _family(name)
    return backend, tokenizer_of(backend, template, bos=bos, eos=eos)


FAMILIES = ("chatml", "llama3", "gemma", "mistral", "thinking")


def _family(name: str) -> tuple[Backend, str, str, str]:
    match name:
        case "chatml":
            return byte_level(), CHATML, "", "<|im_end|>"
        case "llama3":
            return byte_level(LLAMA3_TOKENS, llama3=True), LLAMA3, "<|begin_of_text|>", "<|eot_id|>"
        case "gemma":
            return sentencepiece(GEMMA_TOKENS, prefix=False), GEMMA, "<bos>", "<eos>"
        case "mistral":
            return sentencepiece(), MISTRAL, "<s>", "</s>"
        case "thinking":
            plain = ("<think>", "</think>", "<tool_call>", "</tool_call>")
            return byte_level(CHATML_TOKENS, plain), THINKING, "", "<|im_end|>"
    raise KeyError(name)
