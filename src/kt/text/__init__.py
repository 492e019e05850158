"""The parts of a tokenizer; kt.tokenizer is the door."""
