"""What all tests share."""

import pytest
import torch

# The tensors of most tests are tiny: more threads only cost time.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where tests that can choose put tensors")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """`--device`."""
    return torch.device(request.config.getoption("--device"))
