"""The search for the plan that trains a model fastest, and learns the same."""
