"""What all tests share."""

import torch

# The tensors of most tests are tiny: more threads only cost time.
torch.set_num_threads(1)
