"""What travels between processes, as bytes and rules for bytes; only `tensors` and `collate` know torch."""
