"""A container episode at one turn: its messages, its tokens and its files, to go on from.

An environment with `checkpoints=FOLDER` keeps one before each model call but the first. Another that is given one with
`start_from` has the same files in its container and the same tokens in its forest, by construction: the turns are
recorded as they were sampled, each prompt rendered again and compared, and none of them is trained a second time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strands import Agent

from strands_env.core.jsonable import exact, restore
from strands_sglang.backends.records import from_json, to_json
from strands_sglang.conversation import TurnRequest

from ..outside_agents import conversation_of

_RECORD = "checkpoint.json"


class CheckpointError(RuntimeError):
    """An episode cannot be continued from here: the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An episode before one of its model calls.

    Attributes:
        path: Its folder; `files` in it is the snapshot of the container.
        task: Name of the task's folder.
        messages: The history so far.
        turns: The turns of the main path: the ids of each prompt, and of the reply sampled after it.
    """

    path: str
    task: str
    messages: Sequence[Mapping[str, Any]]
    turns: Sequence[Mapping[str, Any]]

    @property
    def turn(self) -> int:
        """Number of turns sampled so far."""
        return len(self.turns)

    @property
    def files(self) -> str:
        """Folder of the container's snapshot."""
        return os.path.join(self.path, "files")

    @classmethod
    def of(cls, agent: Agent, path: str | os.PathLike[str], task: str) -> Checkpoint:
        """The state of an agent between two turns.

        Raises:
            CheckpointError: Its turns have images.
        """
        current = conversation_of(agent.model).forest.current
        turns = [] if current is None else list(current.path())
        if any(turn.media for turn in turns):
            raise CheckpointError("turns with images have no checkpoints")
        saved = [{"prompt_ids": list(turn.prompt_ids), "completion": to_json(turn.completion)} for turn in turns]
        return cls(path=str(path), task=task, messages=list(agent.messages), turns=saved)

    def save(self) -> None:
        """Write it into its folder."""
        document = {"task": self.task, "turns": self.turns, "messages": exact(list(self.messages))}
        Path(self.path, _RECORD).write_text(json.dumps(document), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Read a saved one.

        Raises:
            CheckpointError: There is none.
        """
        file = Path(path, _RECORD)
        if not file.is_file():
            raise CheckpointError(
                f"there is no checkpoint at {str(path)!r}: an episode keeps them where its environment has "
                "checkpoints=FOLDER, as FOLDER/EPISODE/turn-K"
            )
        record = json.loads(file.read_text(encoding="utf-8"))
        messages = restore(record["messages"])
        return cls(path=str(file.parent), task=record["task"], messages=messages, turns=record["turns"])

    def recall(self, agent: Agent) -> None:
        """Give an agent these messages, and its model these turns.

        Raises:
            CheckpointError: A prompt has changed: the chat template, the tools or the system prompt differ.
        """
        conversation = conversation_of(agent.model)
        tools, messages = agent.tool_registry.get_all_tool_specs(), list(self.messages)
        replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if len(replies) != len(self.turns):  # each reply is one sampled turn, as long as nobody edited the history
            raise CheckpointError(
                f"the checkpoint has {len(self.turns)} turns on its path and {len(replies)} replies in its messages: "
                "an episode whose history was rewritten cannot be continued"
            )
        for index, saved in zip(replies, self.turns, strict=True):
            request = TurnRequest(messages=messages[:index], system=agent.system_prompt, tools=tools)
            turn = conversation.recall(request, from_json(saved["completion"]))
            # Rendered anew and compared: another template would train the sampled tokens behind another prompt.
            if list(turn.prompt_ids) != saved["prompt_ids"]:
                raise CheckpointError(
                    f"the prompt of turn {turn.index + 1} is not what it was: the chat template, the tools or the "
                    "system prompt differ from those of the saved episode"
                )
        agent.messages[:] = messages  # type: ignore[assignment]
