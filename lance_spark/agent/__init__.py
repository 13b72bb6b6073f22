"""The agent that keeps computed columns and views up to date.

`planner.py` looks at the tables, and returns a plan; `agent.py` runs the plan with the jobs of the
table API; `ledger.py` knows budgets and failures; `lease.py` lets one of several agents work on a
table.
"""
