import math

import pytest
import torch

from ddptrain.gpt import GPT, GPT2, TINY, loss_sum, synthetic_tokens


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


def test_head_and_embedding_are_one_matrix_that_both_train(tiny: GPT) -> None:
    assert tiny.head.weight is tiny.tokens.weight
    tiny(tokens()[:, :1]).sum().backward()
    assert tiny.tokens.weight.grad is not None
    assert tiny.tokens.weight.grad.count_nonzero() > TINY.width  # more than the row looked up


def test_a_token_sees_only_those_before_it(tiny: GPT) -> None:
    one = tokens()
    other = one.clone()
    other[:, 9] = (one[:, 9] + 1) % TINY.vocabulary
    before, after = tiny(one), tiny(other)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9], after[:, 9])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_the_place_of_a_token_matters(tiny: GPT) -> None:
    """Attention to equal tokens cannot tell how many they are: the positions do."""
    logits = tiny(torch.tensor([[3, 3, 3]]))
    assert not torch.allclose(logits[:, 1], logits[:, 2])


def test_sequences_are_judged_alone(tiny: GPT) -> None:
    both = tokens()
    assert torch.allclose(tiny(both)[:1], tiny(both[:1]), atol=1e-6)


def test_an_untrained_net_knows_nothing(tiny: GPT) -> None:
    """With the start of GPT-2 all tokens are about equally likely."""
    sequences = tokens(8, TINY.context + 1)
    loss = loss_sum(tiny(sequences[:, :-1]), sequences[:, 1:]).detach()
    assert float(loss) / (8 * TINY.context) == pytest.approx(math.log(TINY.vocabulary), rel=0.01)


def test_the_loss_of_a_batch_is_the_sum_of_its_parts(tiny: GPT) -> None:
    sequences = tokens(3, TINY.context + 1)
    inputs, targets = sequences[:, :-1], sequences[:, 1:]
    with torch.no_grad():
        whole = loss_sum(tiny(inputs), targets)
        parts = [loss_sum(tiny(inputs[i : i + 1]), targets[i : i + 1]) for i in range(3)]
    assert float(whole) == pytest.approx(float(sum(parts)), rel=1e-5)


def test_one_batch_can_be_learned_by_heart(tiny: GPT) -> None:
    sequences = tokens(2, TINY.context + 1)
    optimizer = torch.optim.AdamW(tiny.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        loss = loss_sum(tiny(sequences[:, :-1]), sequences[:, 1:])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


def test_synthetic_tokens_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = tokens(seed=1)
    torch.manual_seed(6)
    assert torch.equal(first, tokens(seed=1))
    assert not torch.equal(first, tokens(seed=2))
    assert first.dtype == torch.int64
    assert set(first.flatten().tolist()) <= set(range(TINY.vocabulary))
