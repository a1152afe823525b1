#!/usr/bin/env python3
"""Reads the log of a test run by cargo-nextest.

    check_test_count.py LOG MINIMUM          fails when fewer than MINIMUM tests passed
    check_test_count.py --slowest N LOG      lists the N slowest tests
"""
import re
import sys


def passed(log):
    summaries = re.findall(r"(\d+) tests? run: (\d+) passed", log)
    return int(summaries[-1][1]) if summaries else 0


def slowest(log, count):
    """The `count` slowest tests, as (seconds, name)."""
    lines = re.findall(r"^ *(?:PASS|FAIL|SIGNAL|TIMEOUT)\S* \[ *([\d.]+)s\] (?:\( *\d+/\d+\) )?(.+)$", log, re.MULTILINE)
    tests = {name.strip(): float(seconds) for seconds, name in lines}
    return sorted(((seconds, name) for name, seconds in tests.items()), reverse=True)[:count]


def main(arguments):
    if arguments[0] == "--slowest":
        with open(arguments[2], encoding="utf-8") as file:
            for seconds, name in slowest(file.read(), int(arguments[1])):
                print(f"{seconds:7.1f} s  {name}")
        return False
    with open(arguments[0], encoding="utf-8") as file:
        count = passed(file.read())
    print(f"{count} tests passed, at least {arguments[1]} expected")
    return count < int(arguments[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
