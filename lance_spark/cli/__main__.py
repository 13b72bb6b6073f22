"""Runs the command line: `python -m lance_spark.cli`."""

from lance_spark.cli import main

if __name__ == "__main__":
    main()
