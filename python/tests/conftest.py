"""Two threads whatever the machine, and no warning of torch's about its own parts."""

import torch

torch.set_num_threads(2)
