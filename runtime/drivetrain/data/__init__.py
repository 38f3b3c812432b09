"""The data of a job: read, split, preprocessed, and delivered in batches."""
