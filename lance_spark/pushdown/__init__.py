"""The planner rule, and the translation of Spark predicates to Lance SQL."""
