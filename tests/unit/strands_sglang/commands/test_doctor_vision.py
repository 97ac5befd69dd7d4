"""`strands-sglang doctor --vision`: a server's prompts with images against ours, id by id."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")


from strands_sglang.__main__ import main
from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_vision_model
from strands_sglang.commands.doctor_vision import prove_vision
from strands_sglang.exceptions import SGLangDecodingError
from strands_sglang.trajectory.images import ProcessorExpander
from strands_sglang.trajectory.media import PreparedImage
from tests.servers.engine_server import serve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vision")
    make_tiny_vision_model(path)
    return path


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return make_tiny_vision_model()


@pytest.fixture
async def url(tiny: TinyModel) -> AsyncIterator[str]:
    options: dict[str, Any] = {"tokenizer": tiny.tokenizer, "image_processor": tiny.image_processor}
    async with EmbeddedEngine(tiny.model, **options, threads=1, seed=0) as engine, serve(engine) as url:
        yield url


async def test_a_server_that_expands_as_we_do_is_proved(url: str, folder: Path, tiny: TinyModel) -> None:
    proof = await prove_vision(url, tiny.tokenizer, ProcessorExpander.from_model(folder))
    assert (proof.turns, proof.images) == (5, 8)
    assert proof.difference is None


async def test_a_replay_finds_a_server_that_sees_other_pixels(url: str, folder: Path, tiny: TinyModel) -> None:
    expander = ProcessorExpander.from_model(folder)
    proof = await prove_vision(url, tiny.tokenizer, expander, tiny.model)
    assert proof.difference is not None and proof.difference < 1e-4

    class Darker(ProcessorExpander):
        def pixels(self, image: bytes) -> Any:
            made = super().pixels(image)
            return {**made, "pixel_values": made["pixel_values"] - 0.1}

    proof = await prove_vision(url, tiny.tokenizer, Darker.from_model(folder), tiny.model)
    assert proof.difference is not None and proof.difference > 1e-3


class OneMore(ProcessorExpander):
    """Counts a token too many for wide images."""

    def prepare(self, image: bytes, **options: Any) -> PreparedImage:
        right = super().prepare(image, **options)
        if right.grid is None or right.grid[1] > right.grid[2]:
            return right
        return replace(right, span=right.span + array("i", [self.placeholder_id]))


async def test_a_server_that_expands_otherwise_is_not(url: str, folder: Path, tiny: TinyModel) -> None:
    with pytest.raises(SGLangDecodingError, match="expands them differently"):
        await prove_vision(url, tiny.tokenizer, OneMore.from_model(folder))


def test_the_command_needs_a_server(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--vision", str(folder)]) == 2
    assert "--server URL" in capsys.readouterr().err
    assert main(["doctor", "--vision", str(folder), "--server", "http://127.0.0.1:9"]) == 1
