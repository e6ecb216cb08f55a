"""A trainer for PyTorch DDP that runs unchanged in one process, N gloo processes or N GPUs.

Start with `native.py`: the whole training loop, with the commands to run it. It needs torch and
numpy, and knows nothing of Kubernetes beyond the DDPJOB_* environment (all of it optional).
"""

__version__ = "0.1.0"
