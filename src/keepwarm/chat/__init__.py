"""A conversation into token ids, and token ids back into text, one piece at a time.

The values (`messages`, `request`, `events`, `wire`) import no tokenizer, so that a gateway
needs none; `tokenizer`, `template` and `render` do.
"""
