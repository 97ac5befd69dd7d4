"""What samples: the backends of a conversation."""
