import pytest
import torch

from ddptrain.gpt import GPT, GPT2, TINY, synthetic_tokens


@pytest.fixture
def tiny() -> GPT:
    torch.manual_seed(1)
    return GPT(TINY)


def tokens(batch: int = 2, length: int = TINY.context, seed: int = 1) -> torch.Tensor:
    return synthetic_tokens(batch, length, vocabulary=TINY.vocabulary, seed=seed)


def test_gpt2_has_as_many_parameters_as_the_published_one() -> None:
    with torch.device("meta"):
        net = GPT(GPT2)
    assert sum(parameter.numel() for parameter in net.parameters()) == 124_439_808


def test_a_token_sees_only_those_before_it(tiny: GPT) -> None:
    one = tokens()
    other = one.clone()
    other[:, 9] = (one[:, 9] + 1) % TINY.vocabulary
    before, after = tiny(one), tiny(other)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9], after[:, 9])
    assert not torch.allclose(before[:, 10:], after[:, 10:])
