"""What the specification of the table API promises, sentence by sentence, in our own words.

B: the guide to backfills. T: the reference of tables, as far as columns, backfills, plans and errors go. F: what was measured to go wrong in
another implementation of that specification. S: what was measured there between backfills. Where the specification names Ray or a remote
service, the promise is that Spark takes its place, or that it is refused by name together with what serves instead.

A test that shows a promise is marked with its id, and `tests/test_promises.py` sees to it that every id has one.
"""

from __future__ import annotations

BACKFILLING = {
    "B01": "a backfill runs as a distributed job, outside the driver's process, and fills the column",
    "B02": "each batch that the UDF has finished is checkpointed, so a failure loses no finished batch",
    "B03": "a job can be resumed, and computes only what is not checkpointed",
    "B04": "the size of checkpoints adapts while the job runs",
    "B05": "sizes begin small, and grow while the throughput is stable",
    "B06": "adaptive sizes stay within their bounds",
    "B07": "planning does not depend on adaptive sizing; actual chunks may be smaller than the configured checkpoint",
    "B08": "max_checkpoint_size bounds checkpoints from above",
    "B09": "without a maximum, the checkpoint size is the maximum",
    "B10": "a maximum above the checkpoint size is capped at it",
    "B11": "min_checkpoint_size bounds checkpoints from below, and is 1 by default",
    "B12": "equal bounds switch adaptive sizing off: all checkpoints have that size",
    "B13": "bounds can be given where the UDF is defined",
    "B14": "bounds can be given where the backfill is called",
    "B15": "bounds of the call come before bounds of the UDF",
    "B16": "concurrency bounds how many processes compute at once",
    "B17": "concurrency is 8 by default",
    "B18": "a concurrency above what the cluster has uses all that there is",
    "B19": "the processors that a UDF needs per call bound how many of its tasks run at once",
    "B20": "intra_applier_concurrency is the number of threads per process that compute",
    "B21": "intra_applier_concurrency is 1 by default",
    "B22": "more threads than processors are accepted",
    "B23": "both settings multiply: so many calls run at the same time",
    "B24": "partial progress of a long job is visible to other readers",
    "B25": "num_frags ends the job after so many fragments",
    "B26": "a later call with a larger num_frags, or without any, completes the column",
    "B27": "fragments that were computed before are not computed again",
    "B28": "commit_granularity commits as soon as so many fragments are finished, while the job goes on",
    "B29": "an SQL filter restricts a backfill to a part of the rows",
    "B30": "functions of strings, such as starts_with, work in filters",
    "B31": "a filter may look at another computed column, such as for rows where it is not NULL",
    "B32": "the same filtered call, after rows were added, computes the new rows that match",
    "B33": "rows that a filter left out are computed by a later call alone",
    "B34": "a wider filter with `and column is null` adds rows, and leaves those that have a value alone",
    "B35": "a filter can select rows that have a value, and they are overwritten",
    "B36": "rows whose input column is there and whose target is not can be selected together",
    "B37": "backfill, backfill_async, plan_backfill and the checkpoint sizes of @udf exist under these names",
}

TABLE_API = {
    # add_columns
    "T01": "add_columns adds SQL columns and columns of UDFs, and returns nothing",
    "T02": "input columns that the table lacks are refused",
    "T03": "input columns of another type than the parameter's annotation are refused",
    "T04": "a UDF over record batches must not declare input columns",
    "T05": "mistakes are found before a job runs, and before anything changes",
    "T06": "a string is an SQL expression, and is computed at once",
    "T07": "a cast of NULL is a valid expression and gives its type",
    "T08": "a UDF in a dict reads the columns that its parameters are named like",
    "T09": "parameters that are named like no column are refused",
    "T10": "a tuple of UDF and columns feeds columns of other names",
    "T11": "the tuple's columns must be as many as the UDF's parameters",
    "T12": "the tuple's columns are bound by position",
    "T13": "a UDF that returns Columns[T], passed by itself, gives one column per field",
    "T14": "a UDF of several columns inside a dict is refused",
    "T15": "UnpackedUDF puts a prefix before the names",
    "T16": "an output column that exists is refused",
    "T17": "every refusal of add_columns is a ValueError",
    "T18": "parameters without annotations are warned about, and the column is added",
    "T19": "a column whose name is no identifier can be an input",
    "T20": "one call of a UDF of several columns fills all of them in one backfill",
    "T21": "prefixes let the same UDF serve several inputs of one table",
    # alter_columns
    "T22": "alter_columns gives a computed column another UDF",
    "T23": "several alterations go into one call",
    "T24": "a column without a UDF can be given one",
    # backfill_async
    "T25": "backfill_async returns at once, with a Job",
    "T26": "Job.result() waits, and returns the result",
    "T27": "_return_future returns a plain future of the result",
    # parameters of both
    "T28": "the target is named by a string or by a list of one",
    "T29": "several independent columns at once are refused as not implemented",
    "T30": "udf= is used instead of the stored one",
    "T31": "without a filter only rows without a value are computed",
    "T32": "where='1=1' computes all rows again",
    "T33": "concurrency and threads together bound the processors in use",
    "T34": "_admission_check=False skips the comparison of what is asked for with what is there",
    "T35": "without _admission_check an environment variable decides, and by default the check is made",
    "T36": "with _admission_strict a lack of resources is ResourcesUnavailableError, before anything starts",
    "T37": "without strictness a lack of resources is a warning, and the job goes on",
    "T38": "without _admission_strict an environment variable decides, and by default it is strict",
    "T39": "min_checkpoint_size is the lower bound of the call",
    "T40": "max_checkpoint_size also bounds the rows that are handed to the UDF at once",
    "T41": "a longer flush interval costs more work again after a sudden death",
    "T42": "a flush interval of 0 persists every batch as soon as it is there",
    "T43": "a job's metrics are kept with the table by default, and only in memory on request",
    "T44": "blob_read_strategy auto, legacy and range all give the UDF the same bytes",
    "T45": "another blob_read_strategy is refused",
    "T46": "a strategy does not depend on the scheme of the table's location",
    "T47": "blob_read_buffer_size bounds the bytes of blobs in one batch",
    "T48": "without it an environment variable decides, and else it is 512 MiB",
    "T49": "job_id names the job",
    "T50": "every parameter of backfill is an explicit keyword with the documented default",
    "T51": "every parameter of backfill_async is an explicit keyword with the documented default",
    "T52": "commit_granularity is 64 by default",
    "T53": "commit_granularity=None commits everything at once",
    "T54": "read_version chooses the version that is read",
    "T55": "without read_version the latest version is read",
    "T56": "task_shuffle_diversity is refused by name, because tasks are given out by Spark",
    "T57": "batch_size is the deprecated name of checkpoint_size",
    "T58": "batch_size=0 makes a batch of all rows of a fragment",
    "T59": "checkpoint_size is the most rows of a checkpoint",
    "T60": "an explicit checkpoint_size is the first size, else the lower bound is",
    "T61": "task_size is the number of rows of a task",
    "T62": "without task_size, a task has half of a worker's share of the rows",
    "T63": "num_frags is the number of fragments to process, and all by default",
    "T64": "skip_frags leaves out so many fragments first, and together with num_frags is a window",
    # backfill
    "T65": "backfill returns when the job has ended, with a result that says so",
    "T66": "timeout raises TimeoutError, and the job goes on",
    "T67": "without timeout the call waits for the end",
    # plan_backfill
    "T68": "plan_backfill counts tasks and rows, and dispatches nothing",
    "T69": "plan_backfill says what the backfill then does",
    "T70": "plan_backfill needs no running cluster",
    "T71": "plan_backfill counts a filter's rows in the driver, and can be asked not to",
    "T72": "plan_backfill takes udf, read_version, num_frags, skip_frags and task_size as backfill does",
    # errors
    "T73": "get_errors returns the error records of the table",
    "T74": "get_errors filters by job",
    "T75": "get_errors filters by column",
    "T76": "get_errors filters by the type of the exception",
    "T77": "get_failed_row_addresses returns the addresses of the rows that failed in a job",
    "T78": "these addresses in a filter run just those rows again",
    # what has no counterpart
    "T79": "remote tables and databases are refused by name, with what serves instead",
    "T80": "a table is a Lance dataset that others can open",
    # and one more of the parameters of both
    "T81": "smaller checkpoints give signs of progress more often",
}

FINDINGS = {
    "F01": "a compaction during a backfill costs the affected fragments only, and no computed value",
    "F02": "the deletion of a whole fragment during a backfill costs the other fragments nothing",
    "F03": "an input that changes during a backfill leaves no stale value of it behind",
    "F04": "a compaction between backfills causes no recomputation",
    "F05": "another UDF recomputes the table once, not at every later backfill",
    "F06": "a UDF of another type is refused, and the table stays readable",
    "F07": "error matchers honour exception types, their order and their patterns",
    "F08": "rows that were skipped are tried again by the plain call",
    "F10": "a result has real numbers, names and times",
    "F11": "small backfills and backfills without work have small fixed costs, and no work makes no version",
    "F12": "a job whose driver was killed is shown as dead",
}

SEQUENCES = {
    "S01": "backfill, compact, backfill: no calls",
    "S02": "backfill of some fragments, compact, backfill: calls for the rest",
    "S03": "backfill, append, backfill: calls for the new rows",
    "S04": "backfill of some fragments, add another column, backfill: calls for the rest",
    "S05": "backfill, another UDF, three backfills: all rows once, then none",
    "S06": "backfill, update an input, backfill: as the default selection says, and the value can be repaired",
    "S07": "backfill with skipped rows, cause removed, backfill: calls for the skipped rows",
}

LATER = {
    "F09": "load_columns and what it reuses: the method comes with a later release, so there is nothing to test yet"
}
"""Findings that nothing here can be tested for."""

PROMISES = {**BACKFILLING, **TABLE_API, **FINDINGS, **SEQUENCES}
