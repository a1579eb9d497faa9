"""The search agent for OpenRLHF 0.9.3: `--agent_func_path agents/agent_func_search.py` (docs/search_agents.md).

Asks the retriever at RETRIEVER_URL. OpenRLHF gives an agent's file no options; RFT_AGENT_PROTOCOL, RFT_AGENT_MAX_TURNS,
RFT_AGENT_TURN_TOKENS, RFT_AGENT_OBSERVATION_TOKENS and RFT_AGENT_TOPK set its limits (`rft.agents.settings`).
"""

from rft.agents.executor import SearchExecutor

AgentExecutor = SearchExecutor  # the name that OpenRLHF looks for
