"""Four ways to compare queries with keys; each maps (..., S, Q) and (..., T, K) to scores (..., S, T)."""

import torch
from torch import Tensor, nn


def dot_score(query: Tensor, key: Tensor) -> Tensor:
    """The dot product q . k (Luong et al. 2015, section 3.1); both of one size D."""
    return query @ key.transpose(-2, -1)


def scaled_dot_score(query: Tensor, key: Tensor) -> Tensor:
    """q . k / sqrt(D): variance 1 where the entries of q and k are independent and have it (Vaswani et al. 2017)."""
    return dot_score(query, key) / query.shape[-1] ** 0.5


class BilinearScore(nn.Module):
    """k^T W q, "general" in Luong et al. 2015, section 3.1: queries and keys may differ in size."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(key_size, query_size))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return dot_score(query @ self.weight.T, key)


class AdditiveScore(nn.Module):
    """v^T tanh(W q + U k + b), a network with one hidden layer of `hidden_size` (Bahdanau et al. 2014, appendix A.1.2).

    The paper leaves biases out "to increase readability". Without b the score is an odd function: it cannot be high
    both for q = k and for -q = -k.
    """

    def __init__(self, query_size: int, key_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self.query = nn.Linear(query_size, hidden_size, bias=bias)  # W and b
        self.key = nn.Linear(key_size, hidden_size, bias=False)  # U
        self.energy = nn.Linear(hidden_size, 1, bias=False)  # v

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = self.query(query), self.key(key)  # (..., S, hidden_size), (..., T, hidden_size)
        return self.energy(torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))).squeeze(-1)
