"""The command `strands-sglang doctor`: is this chat template, or with `--vision` are these images, exact turn by turn?

```
strands-sglang doctor path/to/tokenizer
strands-sglang doctor template.jinja --stop '<|im_end|>' --kwargs '{"enable_thinking": false}' --json
strands-sglang doctor --vision Qwen/Qwen2.5-VL-3B-Instruct --server http://localhost:30000
```

Exit status: 0 usable, 1 not, 2 wrong input.
"""

from __future__ import annotations

import argparse

from ...command_line import add_server, json_object, server_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("source", help="tokenizer or model folder, jinja file, or model id")
    parser.add_argument("--stop", action="append", default=[], metavar="TOKEN", help="stop token (repeatable)")
    parser.add_argument("--eos", metavar="TOKEN", help="end-of-sequence token, for a jinja file that prints it")
    parser.add_argument("--bos", metavar="TOKEN", help="beginning-of-sequence token, for a jinja file that prints it")
    parser.add_argument(
        "--kwargs", type=json_object, default={}, metavar="JSON", help="variables of the template, or a file"
    )
    parser.add_argument("--no-tools", action="store_true", help="check for use without tools")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--vision", action="store_true", help="prove that a server expands the model's images as we do")
    add_server(parser, "server that runs the model: its tokenizer must be this one")
    parser.add_argument(
        "--replay",
        metavar="NATS",
        type=float,
        nargs="?",
        const=1e-4,
        help="with --vision, load the model here, too, and compare log-probabilities: at most NATS apart (default "
        "1e-4, which takes float32 on both sides)",
    )


def run(args: argparse.Namespace) -> int:
    """Check a template, or prove the images of a model; returns the exit status."""
    args.server = server_of(args)
    if args.vision:
        from .vision import check_vision

        return check_vision(args)
    from .report import check_template

    return check_template(args)
