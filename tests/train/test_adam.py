"""Adam equals torch's bit for bit, training does not import torch's compiler for it, and its groups of parameters."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import torch

from hpcgnn.train.adam import Adam, parameter_groups


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((5, 3), (7,), (2, 2))]


def steps(optimiser, parameters: list[torch.nn.Parameter], numbers: range) -> None:
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        optimiser.zero_grad()
        for parameter in parameters[: 2 if number == 2 else 3]:  # once, the last one has no gradient
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for group in optimiser.param_groups:
            group["lr"] = 0.01 / (1 + number)
        optimiser.step()


def groups(parameters: list[torch.nn.Parameter]) -> list[dict]:
    return [{"params": parameters[:1], "weight_decay": 0.1}, {"params": parameters[1:], "weight_decay": 0.0}]


def test_it_is_torchs_bit_for_bit_and_takes_its_state():
    mine, theirs = parameters(), parameters()
    optimiser, wanted = Adam(groups(mine), lr=0.5), torch.optim.Adam(groups(theirs), lr=0.5, foreach=True)
    steps(optimiser, mine, range(4))
    steps(wanted, theirs, range(4))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert optimiser.state_dict()["param_groups"] == wanted.state_dict()["param_groups"]
    resumed, wanted_again = Adam(groups(mine), lr=9.0), torch.optim.Adam(groups(theirs), lr=9.0, foreach=True)
    resumed.load_state_dict(wanted.state_dict())
    wanted_again.load_state_dict(optimiser.state_dict())
    steps(resumed, mine, range(4, 7))
    steps(wanted_again, theirs, range(4, 7))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_training_does_not_import_the_compiler():
    program = (
        "import sys, torch; from hpcgnn.train.adam import Adam; from hpcgnn.train import Trainer\n"
        "p = torch.nn.Parameter(torch.ones(2)); p.grad = torch.ones(2)\n"
        "Adam([{'params': [p]}], lr=0.1).step()\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_dense_parameters_may_have_a_weight_decay_of_their_own():
    first, second, third = parameters()
    model = SimpleNamespace(dense_parameters=lambda: [second], parameters=lambda: iter([first, second, third]))
    decays = {id(p): group["weight_decay"] for group in parameter_groups(model, 0.1, 0.5) for p in group["params"]}
    assert decays == {id(first): 0.1, id(second): 0.5, id(third): 0.1}
