"""`strands-env drift` and `strands-sglang drift`: what re-tokenising a run's texts would have changed."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from strands_env.commands.arguments import ARGUMENTS
from strands_env.commands.terminal import cannot_read, complain, one_line, say
from strands_env.eval import EvalError, read_results
from strands_env.eval.dialects import DIALECTS, DialectTotals, play, played
from strands_env.eval.saved import SavedRun
from strands_env.eval.store.record import naming_errors
from strands_sglang.command_line import Exit

EXAMPLES = 10
"""Places that are shown."""


add_arguments = ARGUMENTS["drift"]  # for `strands-sglang drift`, which finds them here


def run(args: argparse.Namespace) -> int:
    """Count."""
    try:
        saved = SavedRun.of(args.run)
        with naming_errors("read", saved.paths.results):
            saved.paths.results.stat()
        found = saved.tokenizer(args.tokenizer)
        if found.tokenizer is None:
            return complain("drift", "drift needs the run's tokenizer: name it with --tokenizer", Exit.USAGE)
        totals = saved.drift(found.tokenizer, examples=EXAMPLES)
        assert totals is not None
        through = _through_dialects(saved, found.tokenizer, args.dialects)
    except (FileNotFoundError, EvalError) as error:
        return cannot_read("drift", error)
    if not totals.trajectories:
        return complain(
            "drift",
            f"{args.run!r} holds no tokens: it was run with --no-tokens, or by a provider without token data",
            Exit.USAGE,
        )
    status = Exit.OK if all(each is None or each.kept_turns == each.turns for each in through.values()) else Exit.FAILED
    if args.json:
        dialects = {
            name: each and {"client": DIALECTS[name].installed(), **each.to_dict()} for name, each in through.items()
        }
        say(json.dumps({**totals.to_dict(), **({"dialects": dialects} if dialects else {})}))
        return status
    say(
        f"{saved.name}: re-tokenising the text would change {totals.changed_trajectories} of {totals.trajectories} "
        f"trajectories, {totals.changed_tokens} of {totals.sampled_tokens} sampled tokens"
    )
    for kind, places in totals.kinds.most_common():
        say(f"{kind:<14} {places} {'place' if places == 1 else 'places'}")
    for example in totals.examples:
        before = " ".join(repr(text) for text in example.sampled)
        after = " ".join(repr(text) for text in example.retokenized)
        say(f"  {one_line(example.name)} token {example.start}: sampled {before}, comes back as {after}")
    for name, each in through.items():
        say(f"{DIALECTS[name].title}: {_described(name, each)}")
    return status


def _described(name: str, totals: DialectTotals | None) -> str:
    if totals is None:
        return f"not installed (pip install {DIALECTS[name].package})"
    left_out = f"; {totals.refused} rollouts were refused" if totals.refused else ""
    return (
        f"rendered again from what {DIALECTS[name].installed()} sends back, {totals.changed_turns} of {totals.turns} "
        f"turns and {totals.changed_rollouts} of {totals.rollouts} rollouts change; the gateway kept "
        f"{totals.kept_turns} of {totals.turns} turns{left_out}"
    )


def _through_dialects(saved: SavedRun, tokenizer: Any, names: list[str] | None) -> dict[str, DialectTotals | None]:
    """The run through each dialect that was asked for (none named: all); None where the package is not installed."""
    if names is None:
        return {}
    if not getattr(tokenizer, "chat_template", None):
        raise EvalError("--dialects renders histories again: name a tokenizer with a chat template with --tokenizer")
    parser = saved.options.get("tool_parser") or ("hermes" if saved.options.get("backend") == "local" else None)
    samples = read_results(saved.paths.results, with_tokens=True)
    rollouts = list(played(samples, system_prompt=saved.system_prompt, tool_parser=parser))
    return {
        name: asyncio.run(play(rollouts, DIALECTS[name], tokenizer=tokenizer)) if DIALECTS[name].installed() else None
        for name in names or DIALECTS
    }
