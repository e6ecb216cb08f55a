"""Distributed PyTorch on Kubernetes.

One `DDPJob` object, a headless Service and one torchrun pod per node.
"""

__version__ = "0.1.0"
