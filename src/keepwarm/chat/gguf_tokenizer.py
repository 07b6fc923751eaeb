"""The tokenizer that a GGUF file describes in its own metadata.

Two kinds: "gpt2", byte-level BPE whose way of cutting text is named by `tokenizer.ggml.pre`; and
"llama", SentencePiece BPE, whose merges follow from its scores.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from keepwarm.chat.tokenizer_parts import TokenizerParts, stop_tokens
from keepwarm.core.errors import BadModel
from keepwarm.core.gguf import parse_gguf_header

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6  # tokenizer.ggml.token_type

# What cuts text before BPE. Source: `pre_tokenizer` of the models' own tokenizer.json; the names
# are llama.cpp's.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _CL100K % "{1,3}"
_QWEN2 = _CL100K % ""
_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _CASED_WORDS % ("", "", "")
_GPT4O = _CASED_WORDS % ("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}")
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_SPLITS = {
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "mpt", "olmo", "jais"), _GPT2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), _QWEN2),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}
_WHOLE_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")
_COMPOSED = ("qwen2", "deepseek-r1-qwen")
_ORDERED_BY_PLACE = ("gemma", "gemma2", "gemma3", "gemma3n")


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Raises `BadModel` naming the key that is missing or not supported."""
    metadata = _Metadata(path, _read_metadata(path))
    backend = _build(metadata)
    _add_whole_tokens(backend, metadata)
    tokens = metadata.tokens
    bos, eos = metadata.token_id("bos"), metadata.token_id("eos")
    architecture = metadata.get("general.architecture", "")
    return TokenizerParts(
        origin=str(path),
        backend=backend,
        bos_token="" if bos is None else tokens[bos],
        eos_token="" if eos is None else tokens[eos],
        stop_tokens=stop_tokens(backend, (eos, metadata.token_id("eot"), metadata.token_id("eom"))),
        chat_templates=_chat_templates(metadata),
        adds_bos=bos is not None
        and bool(metadata.get("tokenizer.ggml.add_bos_token", metadata.kind == "llama")),
        max_position=metadata.get(f"{architecture}.context_length"),
    )


def _read_metadata(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            return parse_gguf_header(path, raw).metadata
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise BadModel(f"{path} cannot be read: {error}") from error


class _Metadata:
    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self._values = values
        self.kind: str = self.require("tokenizer.ggml.model")
        self.tokens: list[str] = self.require("tokenizer.ggml.tokens")
        self.token_types: list[int] = self.get("tokenizer.ggml.token_type", [1] * len(self.tokens))
        if len(self.token_types) != len(self.tokens):
            raise BadModel(
                f"{path}: {len(self.tokens)} tokens but {len(self.token_types)} in tokenizer.ggml.token_type"
            )

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def require(self, key: str) -> Any:
        if key not in self._values:
            raise BadModel(f"{self.path}: the GGUF metadata lacks {key}")
        return self._values[key]

    def token_id(self, name: str) -> int | None:
        """The id under `tokenizer.ggml.<name>_token_id`."""
        key = f"tokenizer.ggml.{name}_token_id"
        token_id: int | None = self.get(key)
        if token_id is not None and not 0 <= token_id < len(self.tokens):
            raise BadModel(f"{self.path}: {key} is {token_id}, the vocabulary has {len(self.tokens)} tokens")
        return token_id

    def named(self, prefix: str) -> dict[str, str]:
        return {key[len(prefix) :]: value for key, value in self._values.items() if key.startswith(prefix)}


def _chat_templates(metadata: _Metadata) -> dict[str, str]:
    templates = metadata.named("tokenizer.chat_template.")
    default = metadata.get("tokenizer.chat_template")
    return templates if default is None else {**templates, "default": default}


def _build(metadata: _Metadata) -> Backend:
    if metadata.kind == "gpt2":
        return _byte_level(metadata)
    if metadata.kind == "llama":
        return _sentencepiece(metadata)
    raise BadModel(
        f"{metadata.path}: tokenizer.ggml.model is {metadata.kind!r}; supported are 'gpt2' and 'llama'"
    )


def _byte_level(metadata: _Metadata) -> Backend:
    split = metadata.get("tokenizer.ggml.pre", "gpt-2")
    pre_tokenizer = _pre_tokenizer(metadata, split)
    merges = _split_merges(metadata, metadata.require("tokenizer.ggml.merges"))
    vocab = {token: token_id for token_id, token in enumerate(metadata.tokens)}
    backend = Backend(_bpe(metadata, vocab, merges, ignore_merges=split in _WHOLE_WORDS_FIRST))
    backend.pre_tokenizer = pre_tokenizer
    if split in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(metadata: _Metadata, name: str) -> pre_tokenizers.PreTokenizer:
    if name in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if name not in _SPLITS:
        known = ", ".join(sorted((*_SPLITS, *_SINGLE_DIGITS)))
        raise BadModel(f"{metadata.path}: tokenizer.ggml.pre is {name!r}; supported are {known}")
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _split_merges(metadata: _Metadata, lines: list[str]) -> list[tuple[str, str]]:
    merges = []
    for line in lines:
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise BadModel(f"{metadata.path}: tokenizer.ggml.merges has {line!r}, which is no pair")
        merges.append((left, right))
    return merges


def _bpe(
    metadata: _Metadata, vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> models.BPE:
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises the bare class
        raise BadModel(f"{metadata.path}: tokens and merges do not fit: {error}") from error


def _sentencepiece(metadata: _Metadata) -> Backend:
    """As SentencePiece cuts: a space is "▁", and every run of text begins with one where the file
    says so (`add_space_prefix`), also after a control token."""
    vocab = {_with_visible_spaces(token): token_id for token_id, token in enumerate(metadata.tokens)}
    unknown = metadata.token_id("unknown")
    backend = Backend(
        _bpe(
            metadata,
            vocab,
            _merges_from_scores(metadata, vocab),
            unk_token=None if unknown is None else metadata.tokens[unknown],
            fuse_unk=True,
            byte_fallback="<0x00>" in vocab,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    decoding = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(decoding)
    return backend


def _with_visible_spaces(token: str) -> str:
    """Gemma's files spell runs of spaces as such, its vocabulary as "▁▁"."""
    return "▁" * len(token) if token and not token.strip(" ") else token


def _merges_from_scores(metadata: _Metadata, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Every cut of every token into two others; the best token first.

    SentencePiece joins the pair whose whole has the best score; no two are alike. Gemma's
    scores do not follow its merges; its tokens stand in their order.
    """
    places = list(range(len(metadata.tokens)))
    order = places
    if metadata.get("general.architecture") not in _ORDERED_BY_PLACE:
        scores = metadata.require("tokenizer.ggml.scores")
        if len(scores) != len(places):
            raise BadModel(
                f"{metadata.path}: {len(places)} tokens but {len(scores)} in tokenizer.ggml.scores"
            )
        order = sorted(places, key=lambda place: -scores[place])
    never_joined = (_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE)
    joined = {token: i for token, i in vocab.items() if metadata.token_types[i] not in never_joined}
    spelling = {i: token for token, i in joined.items()}
    merges: list[tuple[str, str]] = []
    for place in order:
        token = spelling.get(place, "")
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [pair for pair in cuts if pair[0] in joined and pair[1] in joined]
        merges += sorted(pairs, key=lambda pair: (joined[pair[0]], joined[pair[1]]))
    return merges


def _add_whole_tokens(backend: Backend, metadata: _Metadata) -> None:
    """Control tokens as special ones, user-defined ones as plain ones that are found in any text."""
    named = {metadata.token_id(name) for name in ("bos", "eos", "eot", "eom")}
    special, plain = [], []
    for token_id, (token, kind) in enumerate(zip(metadata.tokens, metadata.token_types, strict=True)):
        if kind == _CONTROL or token_id in named:
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == _USER_DEFINED and token.strip(" "):
            plain.append(AddedToken(token, normalized=False, special=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)
    if backend.get_vocab_size() != len(set(metadata.tokens)):
        raise BadModel(f"{metadata.path}: whole tokens that the vocabulary does not spell alike")
