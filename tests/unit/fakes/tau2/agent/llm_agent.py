"""The agent's prompt."""

AGENT_INSTRUCTION = "Serve the user."
SYSTEM_PROMPT = "{agent_instruction}\n{domain_policy}"
