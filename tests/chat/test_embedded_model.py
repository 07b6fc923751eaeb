"""The embedded model's tokenizer and templates against `transformers`.

Where `transformers` is wrong: from a GGUF it builds SmolLM's pre-tokenizer without the step that
isolates digits, so white space before a number is cut otherwise than the model was trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from keepwarm.chat.messages import Chat
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.template import ChatTemplate
from keepwarm.chat.tokenizer import Tokenizer, load_tokenizer
from keepwarm.cli.embedded_model import find_embedded_model
from keepwarm.core.errors import BadModel
from keepwarm.core.ids import TenantId
from tests.chat.families import FAMILIES, family, message

pytestmark = pytest.mark.engine

_TEXTS = (
    "The second turn reads only what is new.",
    "def f(x: int) -> int:\n    return x * 2  # 1,234.5\n\n\n\tend\r\n",
    "x =    7;   y = 12345\n\n 3",
    "naïve Straße — “quotes” 你好世界 🙂👩‍👩‍👧 ١٢٣ ²½ \u00a0 \u3000",
    "it's we'll THEY'RE don't 'tis",
)


@pytest.fixture(scope="module")
def model_path() -> Path:
    try:
        return find_embedded_model()  # does not import the package, whose own imports need not exist
    except BadModel as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def ours(model_path: Path) -> Tokenizer:
    return load_tokenizer(str(model_path))


@pytest.fixture(scope="module")
def theirs(model_path: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path.parent, gguf_file=model_path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            tokenizer.backend_tokenizer.pre_tokenizer,
        ]
    )
    return tokenizer


def test_the_checkpoint_says_what_the_model_is(ours: Tokenizer) -> None:
    assert ours.vocab_size == 49152
    assert ours.max_position == 8192
    assert ours.stop_texts() == ("<|endoftext|>", "<|im_end|>")
    assert ours.chat_template is not None


def test_ids_equal_those_of_transformers_with_digits_apart(ours: Tokenizer, theirs: Any) -> None:
    for text in _TEXTS:
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)

    @settings(deadline=None, max_examples=200)
    @given(
        text=st.text(
            alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n09ab'")), max_size=60
        )
    )
    def any_text(text: str) -> None:
        ids = ours.encode_template_text(text).tolist()  # theirs finds control tokens
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    any_text()


def test_a_prompt_equals_that_of_transformers(ours: Tokenizer, theirs: Any) -> None:
    contents = ["What is 12 + 345?", "   357\n", _TEXTS[1], "Fine.", _TEXTS[3]]
    roles = ["user", "assistant"] * 3
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    chat = Chat(
        messages=tuple(
            message("user" if n % 2 == 0 else "assistant", text) for n, text in enumerate(contents)
        )
    )
    assert ChatRenderer(ours).render(TenantId("t"), chat).tokens.tolist() == list(expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_templates_render_as_transformers_renders_them(name: str, theirs: Any) -> None:
    _, tokenizer = family(name)
    source = tokenizer.chat_template or ""
    messages = [
        {"role": "user", "content": " a <b> \n"},
        {"role": "assistant", "content": "\nc</think>d "},
        {"role": "user", "content": "e"},
    ]
    theirs.bos_token, theirs.eos_token = tokenizer.bos_token, tokenizer.eos_token
    variables = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    for invite in (False, True):
        expected = theirs.apply_chat_template(
            messages, chat_template=source, add_generation_prompt=invite, tokenize=False
        )
        rendered = ChatTemplate(source, variables=variables).render(
            messages, tools=None, add_generation_prompt=invite
        )
        assert rendered == expected
