"""The report: jobs and tables on one page of HTML."""
