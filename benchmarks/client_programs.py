"""One small program a Python client: a tool round with two parallel calls, then a second user turn.

Each runs in an environment of its own choosing; see `gateway_clients.py`. Address and key are environment variables.
"""

from __future__ import annotations

HEAD = """\
import asyncio, json, os
URL, ROOT, KEY = os.environ["BASE_URL"], os.environ["ANTHROPIC_URL"], os.environ["KEY"]
ASK, AGAIN = "What is 1+2?", "Again?"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "number"}}, "required": ["a", "b"]}
def add(a: int, b: float) -> float:
    "Add two numbers."
    return a + b
"""

LITELLM = """
import litellm
tools = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}]
messages = [{"role": "system", "content": "Be brief."}]
for question in (ASK, AGAIN):
    messages.append({"role": "user", "content": question})
    while True:
        given = {"model": "openai/policy", "api_base": URL, "api_key": KEY, "messages": messages, "tools": tools}
        reply = litellm.completion(**given).choices[0].message
        messages.append({k: v for k, v in reply.to_dict().items() if v is not None and k != "parsed"})
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            result = add(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
"""

OPENAI_AGENTS = """
from openai import AsyncOpenAI
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
set_tracing_disabled(True)
kind = OpenAIResponsesModel if os.environ["DIALECT"] == "responses" else OpenAIChatCompletionsModel
model = kind(model="policy", openai_client=AsyncOpenAI(base_url=URL, api_key=KEY))
agent = Agent(name="adder", instructions="Be brief.", tools=[function_tool(add)], model=model)
async def main():
    result = await Runner.run(agent, ASK)
    await Runner.run(agent, result.to_input_list() + [{"role": "user", "content": AGAIN}])
asyncio.run(main())
"""

LANGGRAPH = """
from langchain_core.tools import tool
from langgraph.prebuilt import create_react_agent
if os.environ["DIALECT"] == "anthropic":
    from langchain_anthropic import ChatAnthropic
    model = ChatAnthropic(model_name="policy", base_url=ROOT, api_key=KEY, max_tokens=512)
else:
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(model="policy", base_url=URL, api_key=KEY)
agent = create_react_agent(model, [tool(add)], prompt="Be brief.")
state = agent.invoke({"messages": [("user", ASK)]})
agent.invoke({"messages": [*state["messages"], ("user", AGAIN)]})
"""

PYDANTIC_AI = """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
agent = Agent(OpenAIChatModel("policy", provider=OpenAIProvider(base_url=URL, api_key=KEY)), instructions="Be brief.")
agent.tool_plain(add)
first = agent.run_sync(ASK)
agent.run_sync(AGAIN, message_history=first.all_messages())
"""

SMOLAGENTS = """
from smolagents import OpenAIServerModel, ToolCallingAgent, tool
@tool
def add(a: int, b: float) -> float:
    '''Add two numbers.

    Args:
        a: First number.
        b: Second number.
    '''
    return a + b
agent = ToolCallingAgent(tools=[add], model=OpenAIServerModel("policy", api_base=URL, api_key=KEY), max_steps=3)
agent.run(ASK)
"""

INSPECT = """
import tempfile
from inspect_ai.model import ChatMessageUser, execute_tools, get_model
from inspect_ai.tool import tool
@tool(name="add")
def adder():
    async def execute(a: int, b: float):
        '''Add two numbers.

        Args:
            a: First number.
            b: Second number.
        '''
        return str(a + b)
    return execute
async def main():
    model = get_model("openai-api/gateway/policy", base_url=URL, api_key=KEY)
    messages, tools = [], [adder()]
    for question in (ASK, AGAIN):
        messages.append(ChatMessageUser(content=question))
        while True:
            output = await model.generate(messages, tools=tools)
            messages.append(output.message)
            if not output.message.tool_calls:
                break
            messages += (await execute_tools(messages, tools)).messages
asyncio.run(main())
"""
