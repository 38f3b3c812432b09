"""The data of a job: what it is (`dataset`), how it is ordered and fetched (`batches`), one file per kind."""
