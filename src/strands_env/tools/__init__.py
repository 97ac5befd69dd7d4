"""Tools for environments."""
