"""Runs the tests of other projects with offloaded models, and compares how many pass: ``python -m projects``.

projects.toml names the projects, the archives with their tests, and how each one's tests choose a device. The tests are
downloaded and not a part of this repository. They run with four modes, each in processes of its own:

- "host": without a device.
- "plain": the tests' device is the simulated one.
- "flow" and "genoa": as "plain", but the models are offloaded with this strategy: :mod:`projects.offloading`. Only the tests
  that pass with "plain" run.
"""
