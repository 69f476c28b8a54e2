"""Logits to tokens. Rows are independent: a row's token depends on its own logits, parameters,
history and seed alone, whatever else is in the batch."""
