"""Labels rows with an OpenAI-compatible service: the code of docs/labels.md.

    OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_KEY_FILE=key.txt python examples/recipes/labels.py

Needs `pip install 'lance-spark[models]'` and a service, and writes the folder `inbox`.
"""

import os
from pathlib import Path

import httpx
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import RateLimit, Skip, retry_http, udf

spark = lance_spark.configure(SparkSession.builder).getOrCreate()
db = lance_spark.connect("inbox", spark)
texts = [
    "the parcel never came",
    "please cancel my order",
    "thank you, it works",
    "my invoice has two errors",
]
rows: list[dict[str, object]] = [{"id": i, "text": f"{texts[i % 4]} ({i})"} for i in range(40)]
messages = db.create_table("messages", rows, mode="overwrite")

LABELS = ["billing", "cancellation", "delivery", "praise"]
PROMPT = f"Answer with the best label for the message of a customer, and with nothing else: {', '.join(LABELS)}."
policy = retry_http(give_up_after=300) + Skip(ValueError, max_skip_fraction=0.1)


@udf(
    on_error=policy, rate_limit=RateLimit(calls_per_minute=6000), max_in_flight=16, call_timeout=60
)
class Label:
    def __init__(self, url: str, model: str, key_file: str) -> None:
        self.url, self.model, self.key_file = url, model, key_file

    async def setup(self) -> None:
        key = (
            Path(self.key_file).read_text(encoding="utf-8").strip()
        )  # a file of the executor, as of a mounted secret
        self.client = httpx.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=30
        )

    async def __call__(self, text: str) -> str:
        turns = [{"role": "system", "content": PROMPT}, {"role": "user", "content": text}]
        body = {"model": self.model, "temperature": 0, "max_tokens": 5, "messages": turns}
        response = await self.client.post("chat/completions", json=body)
        answer: str = (
            response.raise_for_status().json()["choices"][0]["message"]["content"].strip().lower()
        )
        if answer not in LABELS:
            raise ValueError(f"The service answered {answer!r}.")
        return answer


label = Label(os.environ["OPENAI_BASE_URL"], "small-model", os.environ["OPENAI_KEY_FILE"])
messages.add_columns({"label": label})
result = messages.backfill("label", concurrency=4)
assert result.rows_computed + result.rows_skipped == 40
messages.to_spark().groupBy("label").count().show()
for error in messages.get_errors(result.job_id):
    print(error.row_address, error.error_message)
