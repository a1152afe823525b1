"""Hooks of PyTorch that a session adds: to modules, optimizers and saved tensors."""
