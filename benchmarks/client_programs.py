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

CHAT = """
tools = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}]
messages = [{"role": "system", "content": "Be brief."}]
for question in (ASK, AGAIN):
    messages.append({"role": "user", "content": question})
    while True:
        reply = complete(messages, tools)
        messages.append({k: v for k, v in reply.to_dict().items() if v is not None and k != "parsed"})
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            result = add(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
"""
OPENAI = "from openai import OpenAI\nclient = OpenAI(base_url=URL, api_key=KEY)\n"
OPENAI_CHAT = f"""{OPENAI}
def complete(messages, tools):
    return client.chat.completions.create(model="policy", messages=messages, tools=tools).choices[0].message
{CHAT}"""
OPENAI_CHAT_STREAM = f"""{OPENAI}
def complete(messages, tools):
    with client.chat.completions.stream(model="policy", messages=messages, tools=tools) as stream:
        return stream.get_final_completion().choices[0].message
{CHAT}"""
LITELLM = f"""
import litellm
def complete(messages, tools):
    options = {{"model": "openai/policy", "api_base": URL, "api_key": KEY}}
    return litellm.completion(**options, messages=messages, tools=tools).choices[0].message
{CHAT}"""

OPENAI_RESPONSES = (
    OPENAI
    + """
tools = [{"type": "function", "name": "add", "description": "Add.", "parameters": SCHEMA}]
items = []
for question in (ASK, AGAIN):
    items.append({"role": "user", "content": question})
    while True:
        with client.responses.stream(model="policy", instructions="Be brief.", input=items, tools=tools) as stream:
            output = stream.get_final_response().output
        items += [item.to_dict() for item in output]
        calls = [item for item in output if item.type == "function_call"]
        if not calls:
            break
        for call in calls:
            result = add(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": str(result)})
"""
)

ANTHROPIC = """
from anthropic import Anthropic
client = Anthropic(base_url=ROOT, api_key=KEY)
tools = [{"name": "add", "description": "Add.", "input_schema": SCHEMA}]
messages = []
for question in (ASK, AGAIN):
    messages.append({"role": "user", "content": question})
    while True:
        with client.messages.stream(
            model="policy", max_tokens=512, system="Be brief.", messages=messages, tools=tools
        ) as stream:
            reply = stream.get_final_message()
        messages.append({"role": "assistant", "content": reply.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": str(add(**block.input))}
            for block in reply.content if block.type == "tool_use"
        ]
        if not results:
            break
        messages.append({"role": "user", "content": results})
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

GOOGLE = """
from google import genai
client = genai.Client(api_key=KEY, http_options={"base_url": ROOT})
chat = client.chats.create(model="policy", config={"tools": [add], "system_instruction": "Be brief."})
for question in (ASK, AGAIN):  # the SDK runs the tool
    for _ in chat.send_message_stream(question):
        pass
"""
