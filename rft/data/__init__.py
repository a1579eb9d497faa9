"""Prepare training and evaluation problems: filters, decontamination, probe sets, curricula, format checks.

Problem rows are what OpenRLHF and `rft.evals.scores` read: ``{"input": chat messages, "label": answer or tests
as text, "id": stable name, "datasource": origin}``, one JSON object a line. See docs/data.md.
"""
