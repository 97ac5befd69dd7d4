"""The programs that run inside a sandbox, with the sandbox's own interpreter and the standard library only.

This folder is mounted in the sandbox unchanged, and imported from there; nothing in it may import anything outside it.
Each start of a sandbox imports it: `TYPE_CHECKING = False` spares that the module `typing`.
"""
