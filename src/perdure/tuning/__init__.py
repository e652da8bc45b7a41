"""Hyperparameter search on a validation split: spaces, studies, their workers and outcomes."""
