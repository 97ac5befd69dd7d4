"""Evaluators of strands-agents-evals as rewards, and its cases as tasks (extra `strands-evals`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from strands_env.core.chat_messages import spoken_text
from strands_env.core.threads import reward_threads
from strands_env.core.types import Action, RewardFunction, RewardResult, StepResult, TaskContext

from .turns import exchanges_of, turns_of

if TYPE_CHECKING:
    from strands_evals import Case
    from strands_evals.evaluators import Evaluator
    from strands_evals.types.trace import Session

_EXPECTED = (
    *("expected_assertion", "expected_trajectory", "expected_interactions", "expected_environment_state"),
    "metadata",
)
"""Fields of a case that go into the task context under their own names."""


def actions_from_cases(cases: Iterable[Case]) -> list[Action]:
    """Cases as tasks: the input is the message, the expected output the ground truth.

    A task has the name of its case as its id, or its place, as in `case-3`: the case's own session id may be another
    in every process. The other expectations, and the metadata, are fields of the task context.
    """
    actions = []
    for place, case in enumerate(cases):
        if not hasattr(case, "model_dump"):
            raise TypeError(f"cases[{place}] is {case!r:.80}, expected a Case of strands_evals")
        fields = case.model_dump(mode="json", include={"expected_output", *_EXPECTED}, exclude_none=True)
        context = TaskContext(
            id=case.name or f"case-{place}", ground_truth=fields.pop("expected_output", None), **fields
        )
        actions.append(Action(message=case.input, task_context=context))
    return actions


def from_evaluator(
    evaluator: Evaluator | Callable[[], Evaluator],
    *,
    fields: Callable[[Action, StepResult], Mapping[str, Any]] | None = None,
) -> RewardFunction:
    """The score of an evaluator of strands-agents-evals as a reward.

    The evaluator gets the task's text, the final response (empty where there is none), the case's expectations, and the
    whole conversation with its tool calls as a `Session`. Its outputs become one score through its own `aggregator`
    (the mean, unless it has another); those that judge nothing (`not_applicable`) are left out, and without any other
    the reward abstains. `info` has `pass`, `reason` and every output. An evaluator that raises is a failure of the
    grader: unscored, with its error.

    Args:
        evaluator: The evaluator, or a function that makes a fresh one for each score, as in
            `lambda: OutputEvaluator(rubric, model=model_factory())`: an `SGLangModel` keeps its samples.
        fields: Further fields of the `EvaluationData`, or others in place of these, such as
            `actual_environment_state`.
    """
    is_made = hasattr(evaluator, "evaluate") and not isinstance(evaluator, type)  # a class makes one
    if not is_made and not callable(evaluator):
        raise TypeError(f"evaluator must be an Evaluator, or a function that makes one, got {evaluator!r:.200}")
    options = evaluator.to_dict() if is_made and hasattr(evaluator, "to_dict") else None
    return _EvaluatorReward(evaluator, fields, options, is_made=is_made)


class _EvaluatorReward(RewardFunction):
    def __init__(self, evaluator: Any, fields: Any, options: Mapping[str, Any] | None, *, is_made: bool) -> None:
        self.evaluator = evaluator
        self.is_made = is_made
        self.fields = fields
        self.options = options
        self.asks_models = not is_made or hasattr(evaluator, "model")

    def identity(self) -> Any:
        """The evaluator's own options; None, thus not known, for one that has none or is made for each score."""
        return self.options

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Evaluate the episode."""
        from strands_evals.evaluators import Evaluator
        from strands_evals.types.evaluation import EvaluationData, EvaluationOutput

        evaluator = self.evaluator if self.is_made else self.evaluator()
        if not hasattr(evaluator, "evaluate"):
            raise RuntimeError(f"the function given to from_evaluator must return an Evaluator, got {evaluator!r:.200}")
        name = evaluator.get_name()
        given = {
            "input": action.text,
            "name": action.task_context.id,
            "actual_output": step_result.observation.final_response or "",
            "expected_output": action.task_context.ground_truth,
            "actual_trajectory": session_of(action, step_result),
            **{field: getattr(action.task_context, field, None) for field in _EXPECTED},
            **(self.fields(action, step_result) if self.fields else {}),
        }
        try:
            data = EvaluationData(**given)
            if type(evaluator).evaluate_async is Evaluator.evaluate_async:  # whose threads the process waits for
                outputs = await reward_threads.run(evaluator.evaluate, data)
            else:
                outputs = await evaluator.evaluate_async(data)
        except (AttributeError, TypeError) as error:
            # Otherwise it could be taken for a reward function that cannot read an answer which the policy never gave.
            raise RuntimeError(f"the evaluator {name!r} failed: {type(error).__name__}: {error}") from error
        if not isinstance(outputs, list) or not all(isinstance(output, EvaluationOutput) for output in outputs):
            raise RuntimeError(f"the evaluator {name!r} must return a list of EvaluationOutput, got {outputs!r:.200}")
        info = {"evaluator": name, "outputs": [output.model_dump(mode="json") for output in outputs]}
        verdicts = [output for output in outputs if not output.not_applicable]
        if not verdicts:
            return RewardResult(info={**info, "reason": "not_applicable"})
        score, passed, reason = evaluator.aggregator(verdicts)
        return RewardResult(reward=score, info={**info, "pass": passed, "reason": reason})


def session_of(action: Action, result: StepResult) -> Session:
    """The conversation of a task, its history included, as strands-agents-evals reads traces, one a user turn."""
    from strands_evals.types import trace

    seen, name = result.observation, action.task_context.id
    # Its extractors order calls by time, and calls of one time by place.
    at = datetime.fromtimestamp(0, UTC)
    span = trace.SpanInfo(session_id=name, start_time=at, end_time=at)
    tools = [trace.ToolConfig(**tool["function"]) for tool in json.loads(seen.tools or "[]")]
    history = action.task_context.conversation_history if seen.history is None else seen.history
    traces: list[Any] = []
    for messages in exchanges_of([*history, *seen.messages]):
        spans: list[Any] = []
        for turn in turns_of(messages):
            results = {each["toolUseId"]: each for each in turn.results}
            for call in turn.calls:
                answer = results.get(call["toolUseId"], {})
                text = "\n".join(str(part.get("text", part)) for part in answer.get("content", ()))
                arguments = call["input"] if isinstance(call["input"], dict) else {"input": call["input"]}
                error = text if answer.get("status") == "error" else None
                spans.append(
                    trace.ToolExecutionSpan(
                        span_info=span,
                        tool_call=trace.ToolCall(name=call["name"], arguments=arguments),
                        tool_result=trace.ToolResult(content=text, error=error),
                    )
                )
        last = messages[-1]
        spans.append(
            trace.AgentInvocationSpan(
                span_info=span,
                user_prompt=spoken_text(messages[0]),
                agent_response=spoken_text(last) if last["role"] == "assistant" else "",
                available_tools=tools,
                system_prompt=seen.system_prompt,
            )
        )
        traces.append(trace.Trace(spans=spans, trace_id=f"{name}-{len(traces)}", session_id=name))
    return trace.Session(traces=traces, session_id=name)
