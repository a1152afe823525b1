"""What the programs `measure.py` of all recipes share: memory of processes, models of two sizes, and the report."""
