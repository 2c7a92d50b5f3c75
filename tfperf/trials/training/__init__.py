"""Training plans in processes of their own: opened, checked beside float32, and timed."""
