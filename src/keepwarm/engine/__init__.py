"""Executes a `StepPlan` on a device: weights, KV tensors, attention, sampling.

The only package that imports torch.
"""
