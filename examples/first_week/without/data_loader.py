"""Sums of the batches of a data set in memory. Each worker of the DataLoader gets a copy of the data set.

    python data_loader.py 500
"""

import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows.shape[0]

    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index]) * 2


if __name__ == "__main__":
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    rows = np.random.default_rng(0).random((megabytes * 100, 2500), np.float32)
    loader = DataLoader(Rows(rows), batch_size=100, num_workers=4, multiprocessing_context="spawn")
    sums = [float(batch.double().sum()) for batch in loader]
    print(len(sums), sums[0], sums[-1], sum(sums))
