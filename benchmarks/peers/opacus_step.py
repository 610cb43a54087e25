"""Opacus on PyTorch: per-example gradients by hooks (the default), or their norms only (ghost clipping).

Neither has a rule for nn.MultiheadAttention: the queries, keys, values and outputs of the transformer are nn.Linear.
Its low-rank additions are those of peft.
"""

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


def transformer(what: str):
    """The network of finetune.py, with what does not train frozen."""
    import torch
    from torch import nn

    length, width, heads = (protocol.TRANSFORMER[name] for name in ("length", "width", "heads"))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.normed, self.normed_again = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
            self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, h):
            normed = self.normed(h)
            parts = (part(normed).unflatten(-1, (heads, -1)) for part in (self.query, self.key, self.value))
            q, k, v = (part.transpose(1, 2) for part in parts)
            attended = nn.functional.scaled_dot_product_attention(q, k, v)
            h = h + self.out(attended.transpose(1, 2).flatten(2))
            return h + self.hidden(self.normed_again(h))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(protocol.TRANSFORMER["words"], width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(protocol.TRANSFORMER["blocks"])))
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, protocol.TRANSFORMER["classes"])

        def forward(self, tokens):
            # Places of each row, as the hooks know no input without a batch.
            h = self.words(tokens) + self.places(0 * tokens + torch.arange(length))
            return self.head(self.last(self.blocks(h)).mean(1))

    model = Transformer()
    if what == "full":
        return model
    from peft import LoraConfig, inject_adapter_in_model

    rank = protocol.TRANSFORMER["rank"]
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=["query", "value"], lora_dropout=0.0)
    model = inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name or name.startswith("head.")
    return model


def make(method: str, network: str, batch: int) -> dict:
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    def tensor(x):
        x = torch.from_numpy(x)
        return x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x.long()

    data = [(tensor(x), tensor(y)) for x, y in protocol.batches(batch, network)]

    def stepper(model, optimizer, loss):
        feed = itertools.cycle(data)

        def step():
            x, y = next(feed)
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()

        step.trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return step

    def parts():
        known = network in protocol.UNITS
        model = network_of(network) if known else transformer(network.removeprefix("transformer-"))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return model, torch.optim.SGD(trained, lr=protocol.LEARNING_RATE), torch.nn.CrossEntropyLoss()

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
    protocol.run("opacus", ("opacus", "torch", "peft", "numpy"), ("ghost", "hooks"), make)
