"""Two threads whatever the machine, which sleep while they wait: the tests' tensors are small, and
other tests run beside them."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported

import torch

torch.set_num_threads(2)
