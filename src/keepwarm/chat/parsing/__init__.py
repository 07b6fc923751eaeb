"""What a model writes into text, reasoning and tool calls: one incremental parser for each markup."""
