"""The Triton kernels against PyTorch's convolutions, in Triton's interpreter: no GPU is needed, only Triton."""

import importlib.util
import os
import subprocess
import sys

import pytest

CHECK = """
import torch
from torch.nn.functional import conv2d
from equipoise.federated import kernels

torch.manual_seed(0)
for I, O, K, S, H in [(3, 16, 3, 1, 6), (16, 32, 3, 2, 8), (16, 32, 1, 2, 8), (32, 64, 3, 2, 6), (16, 16, 3, 2, 7)]:
    x, w = torch.randn(2, 5, H, H, I), torch.randn(2, O, K, K, I)
    images = [part.permute(0, 3, 1, 2).clone().requires_grad_() for part in x]
    matrices = [part.permute(0, 3, 1, 2).clone().requires_grad_() for part in w]
    expected = [conv2d(a, b, None, S, K // 2) for a, b in zip(images, matrices)]
    y = kernels.forward(x, w, S, "ieee")
    torch.testing.assert_close(y, torch.stack([t.permute(0, 2, 3, 1) for t in expected]), rtol=1e-4, atol=1e-4)
    g = torch.randn_like(y)
    sum((t * part.permute(0, 3, 1, 2)).sum() for t, part in zip(expected, g)).backward()
    for found, leaves in (
        (kernels.backward_input(g, w, x.shape, S, "ieee"), images),
        (kernels.backward_kernel(g, x, K, S, "ieee"), matrices),
    ):
        by_torch = torch.stack([t.grad.permute(0, 2, 3, 1) for t in leaves])
        torch.testing.assert_close(found, by_torch, rtol=1e-4, atol=1e-3)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_are_convolutions_and_their_gradients():
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
