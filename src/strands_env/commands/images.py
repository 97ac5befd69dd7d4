"""`strands-env images`: the container images of sandboxes without a daemon."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from strands_env.commands.terminal import explain_errors, say
from strands_env.sandbox.images import Image, ImageStore, build_image, import_image, pull_image
from strands_env.sandbox.images.sources import built_name
from strands_sglang.command_line import CommandError, Exit


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    store = ImageStore()
    with explain_errors(OSError, status=Exit.FAILED):
        match args.action:
            case "pull":
                _made(pull_image(args.image, store, name=args.name))
            case "import":
                _made(import_image(args.source, store, name=args.name))
            case "build":
                folder = Path(args.folder)  # of a Dockerfile, or of a task in Harbor's format
                parts = [folder / "environment", folder / "tests", *sorted(folder.glob("steps/*/tests"))]
                contexts = [part for part in parts if (part / "Dockerfile").is_file()] or [folder]
                if not (contexts[0] / "Dockerfile").is_file():
                    expected = "give the folder of a task, or one with a Dockerfile"
                    raise CommandError(f"found no Dockerfile in {args.folder!r}: {expected}", Exit.FAILED)
                for part in contexts if args.name is None else contexts[:1]:
                    _made(build_image(part, args.name or built_name(part), store))
            case "remove":
                say(f"removed {store.remove(args.image).name}")
            case _:
                _list(store)
    return Exit.OK


def _made(image: Image) -> None:
    say(f"{image.name}  {image.root}")


def _list(store: ImageStore) -> None:
    images = store.list()
    if not images:
        say("there are no images here: strands-env images pull debian:bookworm-slim")
    width = max((len(image.name) for image in images), default=0)
    for image in images:
        day = time.strftime("%Y-%m-%d", time.localtime(image.imported_at))
        say(f"{image.name:{width}}  {day}  {image.workdir}  {image.source}")
