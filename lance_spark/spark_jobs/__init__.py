"""Spark jobs: tasks and their results, the submission of jobs, failures, and further attempts.

Driver:    `run.py` submits Spark jobs, `task_queue.py` groups and retries tasks,
           `failures.py` classifies the exceptions of Spark.
Executors: `tasks.py` runs a task and answers with its result.
Both:      `codec.py` turns results into JSON and back.
"""
