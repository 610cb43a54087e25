"""Cost of fine-tuning privately against fine-tuning without privacy: the same transformer, interleaved in one process.

    python benchmarks/finetune.py                    # both backends, head, LoRA and all weights, memory
    python benchmarks/finetune.py --backend jax --what lora --batch 8 --rounds 5

The network reads sequences of 128 tokens: 4 blocks, 512 wide, 8 heads, of stock Keras layers. What trains is the head
alone, low-rank additions of rank 8 to all queries and values with the head (LoRA), or all weights. Two steps are
compared, each the compiled training step that `fit` runs, with the same SGD: DP-SGD on Poisson batches as they are
drawn and padded, and plain Keras on exactly B rows. Ratios are paired within a round: of the times of the steps, and of
the times by row, as so few draws may have more or less than B rows.
"""

import argparse
import os
import sys

from common import Series, in_processes, paired
from stepping import WARM, Stepper, interleaved, peak_memory

WHAT = ("head", "lora", "full")
STEPS = ("private", "plain")
LENGTH, WIDTH, HEADS, BLOCKS, WORDS, RANK = 128, 512, 8, 4, 1000, 8


def network(what: str):
    """The transformer, with what does not train frozen."""
    import keras
    from keras import layers as L

    tokens = keras.Input((LENGTH,), dtype="int32")
    places = keras.ops.arange(LENGTH)[None]
    h = L.Embedding(WORDS, WIDTH)(tokens) + L.Embedding(LENGTH, WIDTH)(0 * tokens + places)
    attentions = []
    for _ in range(BLOCKS):
        attentions.append(L.MultiHeadAttention(HEADS, WIDTH // HEADS))
        normed = L.LayerNormalization()(h)
        h = h + attentions[-1](normed, normed)
        h = h + L.Dense(WIDTH)(L.Dense(4 * WIDTH, "gelu")(L.LayerNormalization()(h)))
    head = L.Dense(10)
    model = keras.Model(tokens, head(L.GlobalAveragePooling1D()(L.LayerNormalization()(h))))
    if what != "full":
        model.trainable = False
        model.trainable = head.trainable = True
        for layer in model.layers:
            layer.trainable = layer is head
    if what == "lora":
        for attention in attentions:
            for part in (attention.query_dense, attention.value_dense):
                part.trainable = True
                part.enable_lora(RANK)
    return model


def stepper(what: str, step: str, batch: int) -> Stepper:
    """The private or the plain step."""
    import keras
    import numpy as np

    import lipdp
    from lipdp import strategies

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, WORDS, (2000, LENGTH)).astype("int32"), rng.integers(0, 10, 2000).astype("int32")
    model = network(what)
    private = step == "private"
    if private:
        model = lipdp.DP_Model.from_keras(model)
    model.compile(keras.optimizers.SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return Stepper(model, x, y, batch, strategies.DPSGD(clip_norm=1.0) if private else None, prepared=8)


def measure(what: str, batch: int, rounds: int) -> dict:
    steppers = {step: stepper(what, step, batch) for step in STEPS}
    times = {step: [1e3 * seconds for seconds in values] for step, values in interleaved(steppers, rounds).items()}
    rows = {step: [one.rows(WARM + i) for i in range(rounds)] for step, one in steppers.items()}
    by_row = {step: [ms / n for ms, n in zip(times[step], rows[step], strict=True)] for step in STEPS}
    return {**paired(times), "ratio_by_row": paired(by_row)["ratio"], "drawn": rows["private"]}


def worker(arguments) -> None:
    import keras

    series = Series(arguments.name, ("backend", "what", "batch"), arguments.again)
    backend = keras.backend.backend()
    for what in arguments.what:
        for batch in arguments.batch:
            if series.missing(backend, what, batch):
                run = {"backend": backend, "what": what, "batch": batch, **measure(what, batch, arguments.rounds)}
                run["peak_mib"] = {s: peak_memory(f"finetune.stepper({what!r}, {s!r}, {batch})") for s in STEPS}
                run["load"] = round(os.getloadavg()[0], 2)
                series.add(run, command="python benchmarks/finetune.py")
                print(run, file=sys.stderr, flush=True)


def table(runs: list) -> str:
    """The runs as a Markdown table."""
    names = ("backend", "trains", "B", "plain, ms", "private, ms", "ratio", "by drawn row", "drawn", "memory")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for run in sorted(runs, key=lambda run: (run["backend"], WHAT.index(run["what"]), run["batch"])):
        ms, memory = run["milliseconds"], run["peak_mib"]
        spreads = run["ratio"], run["ratio_by_row"]
        ratio, by_row = (f"{r['median']:.2f} [{r['low']:.2f}-{r['high']:.2f}]" for r in spreads)
        lines.append(
            f"| {run['backend']} | {run['what']} | {run['batch']} | {ms['plain']['median']:.0f} | "
            f"{ms['private']['median']:.0f} | {ratio} | {by_row} | {sum(run['drawn']) / len(run['drawn']):.1f} | "
            f"{memory['private'] / memory['plain']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", default=["tensorflow", "jax"], choices=["tensorflow", "jax"])
    parser.add_argument("--what", nargs="+", default=list(WHAT), choices=WHAT)
    parser.add_argument("--batch", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--again", action="store_true", help="also what the file holds")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="finetune", help="name of the result file")
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    return in_processes(arguments.backend)


if __name__ == "__main__":
    main()
