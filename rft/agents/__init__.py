"""Agents: conversations of several turns with a retriever (docs/search_agents.md)."""
