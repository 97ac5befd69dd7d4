"""The command `strands-sglang doctor`, and what it examines."""
