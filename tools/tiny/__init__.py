"""How kt's built-in model `tiny` is made: text, tokenizer, training, export and evaluation."""
