"""Nets that are split over devices: by layers into the stages of a pipeline, or by channels."""
