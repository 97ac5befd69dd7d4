"""The command `strands-sglang`: one module a subcommand. They parse and print; the work belongs to the rooms below."""
