"""Budgets: limits for a report, what it does of them, and how a first budget is drafted."""
