"""Outputs of modules, computed once for all callers with the same module and input."""
