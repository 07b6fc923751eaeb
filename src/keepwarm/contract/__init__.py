"""What a backend is: a class with `setup` and `chat`, and the runtime that serves one over HTTP."""
