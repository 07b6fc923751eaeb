"""Executes step plans on a device: weights, KV tensors, attention, sampling."""
