#!/usr/bin/env python3
"""Fails when a test run's log shows fewer passed tests than expected: check_test_count.py LOG MINIMUM."""
import re
import sys
from pathlib import Path

log, minimum = Path(sys.argv[1]).read_text(encoding="utf-8"), int(sys.argv[2])
found = re.findall(r"(\d+) tests? run: (\d+) passed", log)
passed = int(found[-1][1]) if found else 0
print(f"{passed} tests passed, at least {minimum} expected")
sys.exit(passed < minimum)
