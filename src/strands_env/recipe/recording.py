"""Recordings of evaluations: every request to the backend and its answer, in one file that replays without a server.

A recording is JSON Lines. The first line holds the options of the run and its tokenizer; then come the tasks, the
backend's description, the exchanges as they finish, and at the end a digest of every sample and a checksum of all
lines. Exchanges belong to a
model of a rollout (`scope`), so that a replay gives every rollout its own answers, in whatever order rollouts run.

Written are token ids, sampling parameters and answers; neither addresses nor headers, and no values of secret names.
Replays run the same environments: their code, their tools and their rewards.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import shutil
import tempfile
import time
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from strands_env.core.jsonable import redact
from strands_env.core.models import ModelFactory, sglang_model_factory
from strands_env.core.types import Action
from strands_env.eval.errors import EvalError
from strands_env.options import EvalOptions
from strands_sglang import exceptions
from strands_sglang.backends import Backend, BackendInfo, BackendWrapper, Capabilities, GenerateAnswer, GenerateRequest
from strands_sglang.exceptions import BackendRequestError, StrandsSGLangError
from strands_sglang.gateway.records import from_json, to_json
from strands_sglang.trajectory.images import ProcessorExpander
from strands_sglang.trajectory.tokens import common_prefix

FORMAT = "strands-env recording 5"
_TIMES = ("_s", "Ms", "_time")
"""Ends of the names of fields that a replay cannot give again: how long something took."""
CANCEL_SECONDS = 10.0
"""Seconds beyond the recorded ones in which a replayed rollout must cancel a call that was cancelled."""
_IDS = frozenset({"tracking_id"})
"""Likewise: random ids that the SDK gives to messages."""


class RecordingError(ValueError):
    """A file is not a recording, or the run cannot be recorded."""


class ReplayMismatchError(BackendRequestError):
    """A replayed rollout asks for something that the recorded one did not."""


class Recorder:
    """Writes a recording: every line at once, so that a run that crashes has one too.

    Args:
        path: The file; it must not exist yet.
        options: Options of the run, by which the replay is made.

    Raises:
        RecordingError: The file exists.
    """

    def __init__(self, path: str | Path, options: EvalOptions) -> None:
        self._options = {**replace(options, base_url=None).to_saved(), "sampling_seed": options.sampling_seed}
        self._path = Path(path)
        if self._path.exists():
            raise RecordingError(f"{str(path)!r} exists already: give another file to record to")
        self._file: TextIO | None = None
        self._crc = 0
        self._paths: dict[int, list[int]] = defaultdict(list)
        self._info: BackendInfo | None = None

    def begin(
        self, tokenizer: Any, model: Mapping[str, Any], *, seeded: bool, expander: ProcessorExpander | None = None
    ) -> None:
        """Write the first line.

        Args:
            model: Configuration of the model factory.
            seeded: Its calls have seeds.
            expander: Of a model that sees.

        Raises:
            OSError: The file cannot be written.
        """
        vision = expander and {
            "family": expander.family,
            "placeholder_id": expander.placeholder_id,
            "media_ids": sorted(expander.media_ids),
            "processor": _pack(expander.image_processor),
        }
        head = {"seeded": seeded, "tokenizer": _pack(tokenizer), "vision": vision}
        self._file = self._path.open("x", encoding="utf-8")
        self._write(format=FORMAT, options=self._options, model=redact(dict(model)), **head)

    def note_tasks(self, tasks: Any) -> Iterator[Action]:
        """The tasks, each written down.

        Raises:
            EvalError: They come asynchronously.
        """
        if not isinstance(tasks, Iterable):
            raise EvalError("--record: tasks that come asynchronously cannot be recorded")
        for action in tasks:
            self._write(task=json.loads(action.model_dump_json()))
            yield action

    def wrap(self, client: Any, scope: int) -> Backend:
        """The backend of one model, recorded."""
        return _Recorded(client, self, scope)

    async def backend(self, inner: Backend) -> None:
        """Write what the backend says of itself, once."""
        if self._info is None:
            self._info = BackendInfo()  # before the wait: models ask side by side
            self._info = await inner.info()
            self._write(info=to_json(self._info), capabilities=to_json(inner.capabilities))

    def exchange(self, scope: int, request: GenerateRequest, **outcome: Any) -> None:
        """Write a request and what became of it; of its prompt only what the last one did not have."""
        # Prompts grow with every turn, so whole ones would make the file grow with the square of its turns.
        ids, previous = request.prompt.tolist(), self._paths[scope]
        shared = common_prefix(ids, previous)
        self._write(scope=scope, prompt=[shared, ids[shared:]], request=_plain_request(request), **outcome)
        self._paths[scope] = ids

    def end(self, samples: Iterable[Any]) -> None:
        """Write the digests of all samples and the checksum, and close the file."""
        for sample in samples:
            self._write(sample=sample.id, digest=digest_of(sample))
        if self._file is not None:
            self._write(crc=self._crc)
            self._file.close()

    def _write(self, **line: Any) -> None:
        assert self._file is not None, "begin comes first"
        text = json.dumps(line, ensure_ascii=False) + "\n"
        self._crc = zlib.crc32(text.encode("utf-8", "surrogatepass"), self._crc)
        self._file.write(text)
        self._file.flush()  # a run that is killed has a recording up to here


class _Recorded(BackendWrapper):
    """A backend whose exchanges are recorded."""

    def __init__(self, inner: Any, recorder: Recorder, scope: int) -> None:
        super().__init__(inner)
        self._recorder, self._scope, self._started = recorder, scope, time.monotonic()

    async def info(self) -> BackendInfo:
        await self._recorder.backend(self.inner)
        return await self.inner.info()

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        try:
            answer = await self.inner.ask(request)
        except asyncio.CancelledError:
            self._recorder.exchange(self._scope, request, cancelled=time.monotonic() - self._started)
            raise
        except StrandsSGLangError as error:
            failure = {"type": type(error).__name__, "args": json.loads(json.dumps(error.args, default=str))}
            self._recorder.exchange(self._scope, request, error=failure)
            raise
        self._recorder.exchange(self._scope, request, answer=to_json(replace(answer, payload={})))
        return answer


@dataclass(slots=True)
class _Exchange:
    """One recorded exchange; `taken` once it was replayed."""

    line: int
    prompt: list[int]
    request: dict[str, Any]
    outcome: Mapping[str, Any]
    taken: bool = False


class Replay:
    """A recording, as what stands in for its backend.

    Attributes:
        options: Options of the recorded run.
        tasks: Its tasks.
        tokenizer: The tokenizer of its model.
        expander: Expands images as its model does; None for a model that does not see.
        digests: Digest of every recorded sample by id; empty where the run did not end.
        difference: The first request that differs from the recorded ones, in words; None as long as none does.

    Raises:
        RecordingError: The file is not a recording, is cut off, or was changed after it was written.
    """

    def __init__(self, path: str | Path) -> None:
        self._crc = 0
        self.options = EvalOptions()
        self.tasks: list[Action] = []
        self.digests: dict[str, str] = {}
        self.difference: str | None = None
        self._scopes: dict[int, list[_Exchange]] = defaultdict(list)
        self._head: dict[str, Any] = {}
        self._info, self._capabilities = BackendInfo(), Capabilities()
        try:
            with Path(path).open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    self._read(number, line)
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError(f"{str(path)!r} is not a whole recording: {error}") from error
        if not self._head:
            raise RecordingError(f"{str(path)!r} is empty: the run ended before its model was made")
        self.tokenizer = _unpack(self._head["tokenizer"], "AutoTokenizer")
        vision = self._head["vision"]
        self.expander = vision and ProcessorExpander(
            _unpack(vision["processor"], "AutoImageProcessor"),
            family=vision["family"],
            placeholder_id=vision["placeholder_id"],
            other_media_ids=vision["media_ids"],
            unproved=True,  # proved where it was recorded, or refused there
        )

    def _read(self, number: int, text: str) -> None:
        line: dict[str, Any] = json.loads(text)
        if line.get("crc", self._crc) != self._crc:
            raise ValueError("it was changed after it was written: its checksum does not fit")
        self._crc = zlib.crc32(text.encode("utf-8", "surrogatepass"), self._crc)
        if number == 1:
            if line.get("format") != FORMAT:
                raise ValueError(f"its first line does not say {FORMAT!r}")
            self._head, self.options = line, EvalOptions.of_saved(line["options"])
        elif "crc" in line:
            return
        elif "task" in line:
            self.tasks.append(Action.model_validate(line["task"]))
        elif "info" in line:
            self._info, self._capabilities = from_json(line["info"]), from_json(line["capabilities"])
        elif "sample" in line:
            self.digests[line["sample"]] = line["digest"]
        else:
            exchanges, (shared, new) = self._scopes[line["scope"]], line["prompt"]
            prompt = [*(exchanges[-1].prompt[:shared] if exchanges else []), *new]
            exchanges.append(_Exchange(line=number, prompt=prompt, request=line["request"], outcome=line))

    def make_models(self, **options: Any) -> ModelFactory:
        """The model factory of the recorded run, without its backend."""
        recorded = self._head["model"]
        return sglang_model_factory(
            tokenizer=self.tokenizer,
            processor=self.expander,
            client=self.wrap(None, 0),
            model_id=recorded["model_id"],
            sampling_params=recorded["sampling_params"],
            seeded=bool(self._head["seeded"]),
            wrap=self.wrap,
            **options,
        )

    def wrap(self, client: Any, scope: int) -> Backend:
        """The backend of one model: the recorded answers of its scope. `client` is not used."""
        return _Replayed(self, self._scopes.get(scope, []))

    @property
    def left_over(self) -> int:
        """Recorded exchanges that nothing asked for."""
        return sum(not exchange.taken for exchanges in self._scopes.values() for exchange in exchanges)

    def mismatch(self, exchanges: list[_Exchange], prompt: list[int], request: dict[str, Any]) -> ReplayMismatchError:
        """The error of a request without a recorded answer, beside the first of its rollout that is left."""
        left = next((exchange for exchange in exchanges if not exchange.taken), None)
        if left is None:
            text = f"request of {len(prompt)} tokens, where the recorded rollout makes no further one"
        elif left.prompt != prompt:
            at = common_prefix(left.prompt, prompt)
            was, now = (self.tokenizer.decode(ids[at : at + 12]) for ids in (left.prompt, prompt))
            text = f"the prompt of line {left.line} differs from token {at} on: recorded {was!r}, now {now!r}"
        else:
            names = [name for name in left.request if left.request[name] != request.get(name)]
            changes = (f"{name} was {left.request[name]!r}, now {request.get(name)!r}" for name in names)
            text = f"the request of line {left.line} differs: {'; '.join(changes)}"
        return self.differs(text)

    def differs(self, text: str) -> ReplayMismatchError:
        """Note a difference, in words; the error for the rollout."""
        self.difference = self.difference or text
        return ReplayMismatchError(f"not as recorded: {text}")


class _Replayed(Backend):
    """Answers as recorded."""

    def __init__(self, replay: Replay, exchanges: list[_Exchange]) -> None:
        self._replay, self._exchanges = replay, exchanges

    @property
    def capabilities(self) -> Capabilities:
        return self._replay._capabilities

    async def info(self) -> BackendInfo:
        return self._replay._info

    def check_sampling_params(self, params: Mapping[str, Any], *, vocab_size: int | None = None) -> dict[str, Any]:
        return {name: value for name, value in params.items() if value is not None}  # checked when it was recorded

    def check_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return dict(fields)

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        prompt, plain = request.prompt.tolist(), _plain_request(request)
        # Not by order alone: agents of a rollout ask side by side, and equal requests are equal answers once each.
        for exchange in self._exchanges:
            if not exchange.taken and exchange.prompt == prompt and exchange.request == plain:
                exchange.taken = True
                return await self._repeat(exchange)
        raise self._replay.mismatch(self._exchanges, prompt, plain)

    async def _repeat(self, exchange: _Exchange) -> GenerateAnswer:
        outcome = exchange.outcome
        if "answer" in outcome:
            answer: GenerateAnswer = from_json(outcome["answer"])
            return answer
        if "error" in outcome:
            kind = getattr(exceptions, outcome["error"]["type"], None)
            if not (isinstance(kind, type) and issubclass(kind, StrandsSGLangError)):  # the name is from a file
                kind = exceptions.BackendError
            raise kind(*outcome["error"]["args"])
        # The rollout cancels this call as it did then: by its deadline, which runs since the rollout began.
        await asyncio.sleep(float(outcome["cancelled"]) + CANCEL_SECONDS)
        raise self._replay.differs(f"the request of line {exchange.line} was cancelled, and now it is not")


def digest_of(sample: Any) -> str:
    """Digest of an `EvalSample` without the times it took and the random ids of its messages."""
    content = _lasting(json.loads(sample.model_dump_json()))
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(part) for name, part in value.items() if not name.endswith(_TIMES) and name not in _IDS}
    return [_lasting(part) for part in value] if isinstance(value, list) else value


def _plain_request(request: GenerateRequest) -> dict[str, Any]:
    """The request without its prompt, and without what differs from run to run."""
    return {
        "sampling_params": json.loads(json.dumps(dict(request.sampling_params))),  # tuples read back are lists
        "logprobs": request.logprobs,
        "score_from": request.score_from,
        # Digests, because each turn sends all images again.
        "images": [hashlib.sha256(image.encode()).hexdigest() for image in request.images],
        "constrain_answer_only": request.constrain_answer_only,
        "fields": redact(dict(request.fields)),
    }


def _pack(saved: Any) -> str:
    """The files of a tokenizer or image processor."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
        saved.save_pretrained(folder)
        archive = shutil.make_archive(f"{beside}/packed", "zip", folder)
        return base64.b64encode(Path(archive).read_bytes()).decode()


def _unpack(packed: str, kind: str) -> Any:
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        # `extractall` keeps to the folder, whatever names the archive has.
        zipfile.ZipFile(io.BytesIO(base64.b64decode(packed))).extractall(folder)
        return getattr(transformers, kind).from_pretrained(folder)
