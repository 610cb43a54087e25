"""Opacus on PyTorch: per-example gradients by hooks (the default), or their norms only (ghost clipping)."""

import itertools

import protocol


def network_of(name: str):
    from torch import nn

    stack, channels, side = [], 1, 28
    for filters in protocol.FILTERS[name]:
        stack += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels, side = filters, side // 2
    stack, width = [*stack, nn.Flatten()], channels * side * side
    *hidden, classes = protocol.UNITS[name]
    for units in hidden:
        stack += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*stack, nn.Linear(width, classes))


def make(method: str, network: str, batch: int) -> dict:
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    data = [
        (torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y).long())
        for x, y in protocol.batches(batch)
    ]

    def stepper(model, optimizer, loss):
        feed = itertools.cycle(data)

        def step():
            x, y = next(feed)
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()

        return step

    def parts():
        model = network_of(network)
        return model, torch.optim.SGD(model.parameters(), lr=protocol.LEARNING_RATE), torch.nn.CrossEntropyLoss()

    model, optimizer, loss = parts()
    # make_private derives the expected batch size from a loader; the steps are fed directly.
    loader = DataLoader(TensorDataset(*(torch.cat(part) for part in zip(*data, strict=True))), batch_size=batch)
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        criterion=loss,
        data_loader=loader,
        noise_multiplier=protocol.NOISE_MULTIPLIER,
        max_grad_norm=protocol.CLIP_NORM,
        poisson_sampling=False,
        grad_sample_mode=method,
    )
    private = (*made[:2], made[2] if method == "ghost" else loss)
    return {"plain": stepper(*parts()), "private": stepper(*private)}


if __name__ == "__main__":
    protocol.run("opacus", ("opacus", "torch", "numpy"), ("ghost", "hooks"), make)
