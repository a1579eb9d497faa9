"""Adapters and the engines that serve them."""
