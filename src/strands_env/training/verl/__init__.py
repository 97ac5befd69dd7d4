"""verl: an agent loop. Written against verl 0.9.1 (`verl.experimental.agent_loop`).

In a module that verl's workers import, or that `agent.agent_loop_config_path` names:

```python
from verl.experimental.agent_loop.agent_loop import register


@register("strands")
class StrandsLoop(make_agent_loop(make_env)):
    "verl looks the class up by its name in this module."
```
"""

from __future__ import annotations

from .agent_loop import agent_loop_output, make_agent_loop, register_advantage, run_rollout
from .backend import ServerManagerBackend

__all__ = [
    "ServerManagerBackend",
    "agent_loop_output",
    "make_agent_loop",
    "register_advantage",
    "run_rollout",
]
