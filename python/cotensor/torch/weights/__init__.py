"""The weights of modules in shared memory: published, attached, followed."""
