"""Questions with one-word answers: the policy is to give the right one, and only words of the question beside it."""

import re

from strands_env.core import Environment


def short_and_right(action, result):
    """1.0 for a reply that ended by itself, whose last word is the answer, and all others words of the question."""
    *others, last = re.findall(r"\w+", result.observation.final_response or "") or [""]
    asked = {word.lower() for word in re.findall(r"\w+", action.text)}
    is_whole = result.termination_reason.value == "task_complete"
    return float(is_whole and last == action.ground_truth and all(word.lower() in asked for word in others))


def create_env_factory(model_factory, **options):
    """Called by `--env short_answers`."""
    return lambda: Environment(model_factory=model_factory, reward_fn=short_and_right, **options)
