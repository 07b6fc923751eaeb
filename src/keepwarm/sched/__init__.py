"""Who is admitted and what each step computes. Decides over `cache`; computes nothing itself."""
