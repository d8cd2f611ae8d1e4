"""Pipelines: prompts in, pictures out. One file per family; the rest is what families share."""
