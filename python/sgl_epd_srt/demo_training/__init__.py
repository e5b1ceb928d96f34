"""Training of the demo model: builds the tokenizer, draws conversations, trains, exports the checkpoint."""
