"""Limits and prompts."""

MAXIMUM_STEP_LIMIT = 3
DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC = "There is another function now."
