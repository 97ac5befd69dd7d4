"""A Strands model provider over SGLang's native `/generate` that keeps exact token trajectories."""
