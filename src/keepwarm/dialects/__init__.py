"""Wire forms to and from `chat`: pure functions and state machines, with the order of SSE events and
the error bodies. Knows no HTTP library, no clock and no tokenizer."""
