"""A model's tokenizer: text to ids, ids to bytes, and what the checkpoint says about turns.

Plain text never becomes a control token here, whatever it spells: only `encode_template_text`,
which is for text a template made, looks for them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken

from keepwarm.chat.borrowed_tokenizer import with_template
from keepwarm.chat.control_text import ControlToken, ControlTokens
from keepwarm.chat.gguf_tokenizer import read_gguf_tokenizer
from keepwarm.chat.hf_tokenizer import read_hf_tokenizer
from keepwarm.chat.token_bytes import spelling_of
from keepwarm.chat.tokenizer_parts import TokenizerParts
from keepwarm.core.errors import BadModel, InvariantBroken
from keepwarm.core.ids import TokenIds, token_ids

_ANCHOR = "\U0010fffe\ufdd0\U0010fffe"
"""Stands for "a control token was here"; non-characters, that no text for interchange holds."""

_BRACKETS = frozenset("<>[]{}|｜")


def load_tokenizer(model_path: str, *, template: str | None = None) -> Tokenizer:
    """From a GGUF file's metadata or a Hugging Face folder, with its own template unless another one
    is given. Raises `BadModel`."""
    parts = _read_parts(Path(model_path))
    return Tokenizer(parts if template is None else with_template(parts, template))


def _read_parts(path: Path) -> TokenizerParts:
    if path.is_dir():
        return read_hf_tokenizer(path)
    if path.is_file():
        return read_gguf_tokenizer(path)
    raise BadModel(f"{path}: no such file or folder")


class Tokenizer:
    """Immutable once built; threads may share it."""

    def __init__(self, parts: TokenizerParts) -> None:
        self.origin = parts.origin
        self.bos_token = parts.bos_token
        self.eos_token = parts.eos_token
        self.stop_tokens = parts.stop_tokens
        self.chat_templates = dict(parts.chat_templates)
        self.adds_bos = parts.adds_bos
        self.max_position = parts.max_position
        added = parts.backend.get_added_tokens_decoder()
        self.vocab_size: int = max(parts.backend.get_vocab_size(), *(token + 1 for token in added), 0)
        spelling = spelling_of(parts.backend, parts.origin)
        self.strips_first_space = spelling.strips_first_space
        self._spell = spelling.to_bytes
        self._bytes: dict[int, bytes] = {}
        self._backend = parts.backend
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._control = self._control_tokens(added)
        self.control = ControlTokens(self._control)
        self._forbidden = ControlTokens({**self._control, _ANCHOR: ControlToken(token_id=-1)})
        self._never_in_text = self._prepare_backend(added)

    @property
    def chat_template(self) -> str | None:
        """The Jinja source for a conversation, where the checkpoint has one."""
        return self.chat_templates.get("default")

    def encode(self, text: str, *, after_control_token: bool = False) -> TokenIds:
        """Ids of plain text; control tokens it spells are words like others, and no BOS is added.

        `after_control_token`: the text does not open the prompt. Some tokenizers treat an opening
        differently.
        """
        ids = self._encode(_ANCHOR + text)[1:] if after_control_token else self._encode(text)
        if not self._never_in_text[ids].any():
            return ids
        return self._encode_in_pieces(text, after_control_token)

    def encode_inside(self, text: str) -> TokenIds:
        """Ids that add this text to a text that stands before it: no space is put in front."""
        if self.strips_first_space:
            for before in ("\n", "\x01"):  # nothing merges with the latter
                ids = self.encode(before + text, after_control_token=True)
                spelled = b""
                for number, token in enumerate(ids.tolist(), start=1):
                    spelled += self.token_bytes(token)
                    if spelled.removeprefix(b" ") == before.encode():
                        return ids[number:]
        return self.encode(text, after_control_token=True)

    def encode_template_text(self, text: str) -> TokenIds:
        """Ids of text in which control tokens' spellings are control tokens."""
        pieces = [
            np.array([piece], np.int32)
            if isinstance(piece, int)
            else self.encode(piece, after_control_token=number > 0)
            for number, piece in enumerate(self.control.cut(text))
        ]
        return np.concatenate(pieces) if pieces else token_ids([])

    def decode(self, tokens: npt.ArrayLike) -> str:
        """All the text of these ids; special tokens have none."""
        text = self.decode_bytes(tokens)
        if self.strips_first_space:
            text = text.removeprefix(b" ")
        return text.decode("utf-8", "replace")

    def decode_bytes(self, tokens: npt.ArrayLike) -> bytes:
        """The bytes of these ids as they would stand after other text."""
        numbers: list[int] = np.asarray(tokens, np.int64).tolist()
        return b"".join(self.token_bytes(token) for token in numbers if token not in self._special)

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to a text; nothing for an id that names no token."""
        known = self._bytes.get(token)
        if known is None:
            # Beyond the vocabulary are the anchor and, in some models, padding that can be sampled.
            spelled = self._backend.id_to_token(token) if token < self.vocab_size else None
            known = self._bytes[token] = b"" if spelled is None else self._spell(spelled)
        return known

    def is_special(self, token: int) -> bool:
        """Whether the token is structure, not text."""
        return token in self._special

    def control_id(self, spelling: str) -> int | None:
        """The control token of this spelling."""
        token = self._control.get(spelling)
        return None if token is None else token.token_id

    def stop_texts(self) -> tuple[str, ...]:
        """The spellings of the stop tokens."""
        stops = set(self.stop_tokens)
        return tuple(spelling for spelling, token in self._control.items() if token.token_id in stops)

    def _control_tokens(self, added: dict[int, AddedToken]) -> dict[str, ControlToken]:
        """Special tokens; and whole tokens that a template writes, unless they look like words:
        some checkpoints (DeepSeek) do not flag their role marks as special."""
        written = "\0".join(self.chat_templates.values())
        return {
            token.content: ControlToken(
                token_id=token_id, strips_left=token.lstrip, strips_right=token.rstrip
            )
            for token_id, token in added.items()
            if len(token.content) > 1  # one character cannot be cut inside
            and (token.special or (token.content in written and not _BRACKETS.isdisjoint(token.content)))
        }

    def _prepare_backend(self, added: dict[int, AddedToken]) -> npt.NDArray[np.bool_]:
        """Make the backend see control tokens as words; returns which ids it must never give."""
        backend = self._backend
        backend.add_special_tokens(
            [
                AddedToken(token.content, normalized=token.normalized, special=True)
                for token in added.values()
                if token.content in self._control and not token.special
            ]
        )
        backend.encode_special_tokens = True
        backend.add_tokens([AddedToken(_ANCHOR, normalized=False, special=False)])
        anchor = backend.token_to_id(_ANCHOR)
        if anchor is None:
            raise BadModel(f"{self.origin}: the tokenizer takes no added token")
        never = np.zeros(max(self.vocab_size, anchor) + 1, np.bool_)
        never[[token.token_id for token in self._control.values()]] = True
        never[anchor] = True
        unknown = getattr(backend.model, "unk_token", None)
        if unknown is not None and backend.token_to_id(unknown) is not None:
            never[backend.token_to_id(unknown)] = False  # what it gives for text it cannot spell
        return never

    def _encode(self, text: str) -> TokenIds:
        """By the call that leaves out where in the text each token lies, which costs a third."""
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return token_ids(encoding.ids)

    def _encode_in_pieces(self, text: str, after_control_token: bool) -> TokenIds:
        """For text that is a control token to the model even so (unigram models take any whole
        piece), or that spells the anchor: cut inside the spelling."""
        first, *others = self._forbidden.cut_inside(text)
        if not others:
            raise InvariantBroken("plain text became a control token")
        ids = self.encode(first, after_control_token=after_control_token)
        return np.concatenate([ids, *(self.encode_inside(piece) for piece in others)])
